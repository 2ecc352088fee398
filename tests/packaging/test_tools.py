# SPDX-License-Identifier: Apache-2.0
"""Makefile, the check of what must be installed, and the example configurations."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fdspec.config import load_config
from fdspec.config.launch import load_launch

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts" / "check_prerequisites.sh"


def check(python, path):
    """Run the check with nothing but `path` to find programs in."""
    environment = {"PATH": str(path)}
    return subprocess.run(
        ["/bin/bash", str(CHECK), python], env=environment, capture_output=True, text=True
    )


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_everything_there(tmp_path):
    include = tmp_path / "include"
    include.mkdir()
    (include / "Python.h").touch()
    answers = f'case "$2" in *get_path*) echo {include};; *"%d.%d"*) echo 3.11;; esac'
    program(tmp_path, "python3.11", answers)
    program(tmp_path, "g++", "exit 0")
    result = check("python3.11", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_everything_missing(tmp_path):
    result = check("python3.11", tmp_path)
    assert result.returncode == 1
    assert "missing: python3.11 (Debian, Ubuntu: apt install python3.11" in result.stderr
    assert "missing: a C++ compiler (Debian, Ubuntu: apt install g++" in result.stderr


def test_python_without_headers_and_venv(tmp_path):
    answers = (
        'case "$2" in *get_path*) echo /nowhere;; *ensurepip*) exit 1;; *"%d.%d"*) echo 3.11;;'
    )
    program(tmp_path, "python3.11", answers + " esac")
    program(tmp_path, "g++", "exit 0")
    result = check("python3.11", tmp_path)
    assert result.returncode == 1
    assert "missing: the venv module of python3.11" in result.stderr
    assert (
        "missing: /nowhere/Python.h (Debian, Ubuntu: apt install python3.11-dev)" in result.stderr
    )
    assert "compiler" not in result.stderr


def test_old_python(tmp_path):
    answers = (
        'case "$2" in *"< (3, 11)"*) exit 1;; *"%d.%d"*) echo 3.9;; *get_path*) echo /x;; esac'
    )
    program(tmp_path, "python3.9", answers)
    result = check("python3.9", tmp_path)
    assert "missing: Python 3.11 or newer; python3.9 is 3.9" in result.stderr


def make(*arguments):
    tool = shutil.which("make")
    assert tool is not None
    result = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_help_names_the_targets():
    text = make("help")
    for target in ("demo", "serve", "test", "test-full", "format", "model", "build", "clean"):
        assert f"  make {target} " in text
    assert make() == text


def test_make_test_checks_format_lint_types_spelling_and_tests():
    commands = make("-n", "test")
    tools = ("ruff format --check", "ruff check", "mypy", "clang-format --dry-run --Werror")
    for tool in (*tools, "codespell", "pytest"):
        assert f".venv/bin/{tool}" in commands


def test_ci_runs_make_test():
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert path.read_text().splitlines()[-1] == "exec make test"


DEMO_MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "yaml").glob("*.yaml")), ids=str)
def test_example_configurations_load_without_a_warning(path):
    is_launch = "\nservers:" in path.read_text(encoding="utf-8")
    servers = load_launch([str(path)]).servers if is_launch else ()
    for loaded in [s.loaded for s in servers] or [load_config(["--config", str(path)])]:
        assert loaded.warnings == ()
        model = loaded.config.model.model
        assert not model.startswith("models/") or model == DEMO_MODEL
        assert loaded.config.server.host == "127.0.0.1"
