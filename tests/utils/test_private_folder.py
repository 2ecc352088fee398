# SPDX-License-Identifier: Apache-2.0
"""Private folders: who may look in, and what becomes of those that were left."""

import stat
import subprocess
import sys

from fdspec.utils.private_folder import make_private_folder

_MAKE = "from fdspec.utils.private_folder import make_private_folder; print(make_private_folder())"


def test_a_dead_process_s_folder_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = make_private_folder()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    others = [tmp_path / "fdspec-kept", tmp_path / "fdspec-1-abc", tmp_path / "else-99999999-a"]
    for folder in others:
        folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", _MAKE],
        env={"TMPDIR": str(tmp_path)},
        cwd=".",
        capture_output=True,
        text=True,
        check=True,
    )
    left = tmp_path / ended.stdout.strip()
    assert left.is_dir() and left.parent == tmp_path
    make_private_folder()
    assert not left.exists()
    assert mine.is_dir() and all(folder.is_dir() for folder in others)


def test_a_long_temporary_folder_is_not_used(tmp_path, monkeypatch):
    parent = tmp_path / ("a" * 80)
    parent.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(parent))
    folder = make_private_folder()
    try:
        assert str(folder).startswith("/tmp/fdspec-")
    finally:
        folder.rmdir()
