# SPDX-License-Identifier: Apache-2.0
"""The build: what it compiles, what it compiles again, and what it says when a tool is missing."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from fdspec.ops import build
from fdspec.ops.dispatch import kernels


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small source tree in the place of the real one."""
    tree = tmp_path / "csrc"
    tree.mkdir()
    (tree / "value.h").write_text("inline int value() { return 1; }\n")
    (tree / "answer.cc").write_text('#include "value.h"\nint answer() { return value(); }\n')
    (tree / "other.cc").write_text("int other() { return 2; }\n")
    monkeypatch.setattr(build, "SOURCE_DIR", tree)
    return tree


def make(tree: Path) -> Path:
    objects = tree.parent / "objects"
    units = [
        build.CompileUnit(source, objects / f"{source.stem}.o", ())
        for source in sorted(tree.glob("*.cc"))
    ]
    flags = [f"-I{tree}"]
    return build.build_library(units, tree.parent / "library.so", flags, link_flags=())


def times(tree: Path) -> dict[str, int]:
    files = [*(tree.parent / "objects").glob("*.o"), tree.parent / "library.so"]
    return {path.name: path.stat().st_mtime_ns for path in files}


def test_only_what_changed_is_compiled_again(sources: Path) -> None:
    make(sources)
    before = times(sources)
    make(sources)
    assert times(sources) == before
    (sources / "value.h").write_text("inline int value() { return 3; }\n")
    make(sources)
    after = times(sources)
    assert {name for name in before if after[name] != before[name]} == {"answer.o", "library.so"}


def test_compiler_output_is_shown(sources: Path) -> None:
    (sources / "other.cc").write_text("int other() { return nonsense; }\n")
    with pytest.raises(build.BuildError, match="nonsense"):
        make(sources)
    assert not (sources.parent / "library.so").exists()


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(build.BuildError, match="apt install g\\+\\+"):
        build.find_compiler()


def test_missing_python_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(build.BuildError, match=r"apt install python3\.\d+-dev"):
        build.core_include_flags()


def test_kernels_are_compiled_for_every_level_and_the_rest_once(tmp_path: Path) -> None:
    units = build.core_units(tmp_path)
    kernels = {unit.source for unit in units if unit.source.name.endswith(".kernel.cc")}
    assert len(units) == len({unit.object_path for unit in units})
    for source in kernels:
        levels = {unit.flags[-1] for unit in units if unit.source == source}
        assert levels == {f"-DFDSPEC_ISA={isa}" for isa in build.isa_flags()}
    others = [unit for unit in units if unit.source not in kernels]
    tiles = [unit for unit in others if unit.source.name.endswith(".amx.cc")]
    assert all(set(build.X86_TILE_FLAGS) < set(unit.flags) for unit in tiles)
    assert len({unit.source for unit in tiles}) == len(tiles)
    rest = [unit for unit in others if unit not in tiles]
    assert [unit.source.name for unit in rest if unit.flags] == ["module.cc"]
    assert not any("paddle" in unit.source.parts for unit in units)
    assert not any("-march=native" in flag for unit in units for flag in unit.flags)


def test_paddle_ops_need_the_core_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paddle")
    monkeypatch.setattr(build, "PACKAGE_DIR", tmp_path)
    with pytest.raises(build.BuildError, match="run `python -m fdspec.ops.build` first"):
        build.build_paddle_ops()


def test_stale_kernels_are_not_mixed_with_new_custom_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest changes with any header, and the module knows the one it was built with."""
    assert kernels().headers_digest == build.headers_digest()
    paddle_ops = pytest.importorskip("fdspec.ops.paddle_ops")
    monkeypatch.setattr(paddle_ops, "headers_digest", lambda: "another")
    with pytest.raises(build.BuildError, match="older than their sources"):
        paddle_ops.load.__wrapped__()


def test_digest_of_headers(sources: Path) -> None:
    before = build.headers_digest()
    (sources / "answer.cc").write_text("int answer() { return 4; }\n")
    assert build.headers_digest() == before
    (sources / "value.h").write_text("inline int value() { return 5; }\n")
    assert build.headers_digest() != before


@pytest.mark.skipif(shutil.which("nm") is None, reason="binutils are not installed")
def test_levels_share_no_code() -> None:
    """Symbols that the linker may merge belong to one level by their names."""
    directory = build.default_build_dir()
    build.build_core()
    for isa in set(build.isa_flags()) - {"portable"}:
        for path in directory.glob(f"*.{isa}.o"):
            command = ["nm", "--defined-only", "-C", str(path)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            for line in result.stdout.splitlines():
                assert line.split()[1] not in "WVu" or f"fdspec::{isa}::" in line, path.name
