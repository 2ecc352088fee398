# SPDX-License-Identifier: Apache-2.0
"""The lock files pin everything that pyproject.toml asks for, to versions that it allows."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(*names):
    found = {}
    for name in names:
        for line in (ROOT / "requirements" / name).read_text().splitlines():
            if line and not line.startswith(("#", "-r ")):
                requirement, _, version = line.partition("==")
                assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{line} is not an exact version"
                key = canonicalize_name(requirement)
                assert key not in found, f"{requirement} is pinned twice"
                found[key] = version
    return found


def unmet(requirements, pinned):
    return [
        text
        for text in requirements
        if not Requirement(text).specifier.contains(
            pinned.get(canonicalize_name(Requirement(text).name), "0")
        )
    ]


def test_demo_lock_covers_the_runtime():
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["cpu"]]
    assert unmet(wanted, pins("demo.txt")) == []


def test_bench_lock_covers_the_benchmarks():
    assert "-r demo.txt" in (ROOT / "requirements" / "bench.txt").read_text().splitlines()
    wanted = PROJECT["optional-dependencies"]["bench"]
    assert unmet(wanted, pins("demo.txt", "bench.txt")) == []


def test_test_lock_covers_the_checks():
    assert "-r demo.txt" in (ROOT / "requirements" / "test.txt").read_text().splitlines()
    wanted = PROJECT["optional-dependencies"]["test"]
    assert unmet(wanted, pins("demo.txt", "test.txt")) == []


@pytest.mark.parametrize("name", ["torch", "transformers", "pytest"])
def test_the_server_needs_no_test_package(name):
    assert name not in pins("demo.txt")


def test_extras_are_those_that_the_documentation_names():
    assert set(PROJECT["optional-dependencies"]) == {
        *("cpu", "gpu", "nlp", "embedded", "bench", "test")
    }


def test_pre_commit_hooks_run_pinned_tools():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert tools == {"ruff", "clang-format", "codespell", "mypy"}
    assert tools <= pins("test.txt").keys()
