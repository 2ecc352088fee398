# SPDX-License-Identifier: Apache-2.0
"""Imports point down only, paddle stays out of the frontend, and every dependency is declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fdspec"

# What each package may import besides itself; `utils` stands next to the bottom.
# Longest name first: fdspec.scheduler.topic is stricter than fdspec.scheduler.
ALLOWED = {
    "core": set(),
    "version": set(),
    "utils": {"core"},
    "config": {"core", "utils", "version"},
    "tokenizer": {"core", "utils"},
    "ops": {"utils"},
    "layers": {"ops", "config", "core", "utils"},
    "models": {"layers", "ops", "config", "core", "utils", "version"},
    "kv": {"core", "utils"},
    "spec_decode": {"core", "config", "ops", "models", "utils"},
    "scheduler.broker": {"core", "config", "utils"},
    "scheduler.topic": {"core", "utils", "scheduler.broker"},
    "scheduler": {"core", "config", "kv", "scheduler.topic", "utils"},
    "worker": {"core", "config", "models", "layers", "ops", "kv", "utils"},
    "transfer": {"core", "utils"},
    "training": {"core", "layers", "models", "ops", "tokenizer", "utils"},
    "engine": {
        *("core", "config", "tokenizer", "ops", "layers", "models", "kv", "spec_decode"),
        *(
            "scheduler.broker",
            "scheduler.topic",
            "scheduler",
            "worker",
            "transfer",
            "utils",
            "version",
        ),
    },
    "entrypoints": {
        *("engine.build", "engine.dry_run", "scheduler.broker", "scheduler.topic", "tokenizer"),
        *("config", "core", "models", "ops", "training", "utils", "version"),
    },
    "": {"core", "entrypoints", "version"},
}
# `ops.build` only asks, in a function, where Paddle is installed.
MAY_IMPORT_PADDLE = ("layers", "models", "worker", "ops.paddle_ops", "ops.build", "training")
NEVER = {"torch", "transformers"}
CORE_THIRD_PARTY = {"numpy"}


@dataclass(frozen=True)
class Import:
    """One import statement: who imports what, and whether it runs when the module is imported."""

    importer: str
    imported: str
    line: int
    runs_at_import: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def all_modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports_of(module: str, tree: ast.AST, known: set[str]) -> Iterator[Import]:
    """Imports that run, at import or later; those for type checkers are left out."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            source = node.module or ""
            for alias in node.names:
                name = f"{source}.{alias.name}"
                yield Import(module, name if name in known else source, node.lineno, at_import)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            children: Iterable[ast.AST] = ast.iter_child_nodes(node)
            if isinstance(node, ast.If) and is_type_checking(node.test):
                children = node.orelse
            for child in children:
                yield from visit(child, at_import and not is_function)

    yield from visit(tree, True)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    modules = all_modules()
    return [
        found
        for name, path in modules.items()
        for found in imports_of(name, ast.parse(path.read_text(encoding="utf-8")), set(modules))
    ]


def package_of(module: str) -> str:
    """The entry of ALLOWED that a module of fdspec falls under."""
    name = module.removeprefix("fdspec").lstrip(".")
    for package in sorted(ALLOWED, key=len, reverse=True):
        if package and (name == package or name.startswith(package + ".")):
            return package
    assert name == "", f"{module} belongs to no package of the import rule"
    return ""


def may_import(importer: str, imported: str) -> bool:
    source, target = package_of(importer), package_of(imported)
    if source == target:
        return True
    name = imported.removeprefix("fdspec.")
    return any(
        target == allowed or name == allowed or name.startswith(allowed + ".")
        for allowed in ALLOWED[source]
    )


def is_own(name: str) -> bool:
    return name.partition(".")[0] == "fdspec"


def top(name: str) -> str:
    return name.partition(".")[0]


def test_the_rule_catches_what_it_forbids():
    assert not may_import("fdspec.core.plan", "fdspec.utils.logging")
    assert not may_import("fdspec.entrypoints.api_server", "fdspec.engine.engine")
    assert may_import("fdspec.entrypoints.api_server", "fdspec.engine.build")
    assert not may_import("fdspec.entrypoints.api_server", "fdspec.scheduler.batch")
    assert may_import("fdspec.entrypoints.api_server", "fdspec.scheduler.topic.client")
    assert not may_import("fdspec.scheduler.topic.client", "fdspec.scheduler.batch")
    assert not may_import("fdspec.models.llama", "fdspec.worker")
    code = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
    )
    code += "def f():\n    import c\n"
    found = {i.imported: i.runs_at_import for i in imports_of("m", ast.parse(code), set())}
    assert found == {"typing": True, "b": True, "c": False}


def test_imports_point_down(imports):
    wrong = [
        str(i) for i in imports if is_own(i.imported) and not may_import(i.importer, i.imported)
    ]
    assert wrong == []


def test_core_needs_only_the_standard_library_and_numpy(imports):
    allowed = CORE_THIRD_PARTY | {"fdspec"} | set(sys.stdlib_module_names)
    wrong = [
        str(i)
        for i in imports
        if package_of(i.importer) == "core" and top(i.imported) not in allowed
    ]
    assert wrong == []


def test_only_layers_models_and_worker_import_paddle(imports):
    prefixes = tuple(f"fdspec.{name}" for name in MAY_IMPORT_PADDLE)
    wrong = [
        str(i)
        for i in imports
        if top(i.imported) == "paddle"
        and not any(i.importer == p or i.importer.startswith(p + ".") for p in prefixes)
    ]
    assert wrong == []


def test_nothing_imports_the_test_oracles(imports):
    assert [str(i) for i in imports if top(i.imported) in NEVER] == []


def test_every_third_party_import_is_declared(imports):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[A-Za-z0-9_-]+", text) for text in project["dependencies"]]
    declared = {name[0].lower() for name in names if name}
    module_of = {"pyyaml": "yaml", "pyzmq": "zmq"}
    modules = {module_of.get(name, name.replace("-", "_")) for name in declared}
    allowed = modules | {"fdspec", "paddle"} | set(sys.stdlib_module_names)
    wrong = [str(i) for i in imports if top(i.imported) not in allowed]
    assert wrong == []


def reachable_at_import(imports: list[Import], start: str) -> set[str]:
    """Everything that importing a module imports, by fdspec's own code."""
    edges: dict[str, set[str]] = {}
    for found in imports:
        if found.runs_at_import:
            edges.setdefault(found.importer, set()).add(found.imported)
    reached: set[str] = set()
    todo = [start]
    while todo:
        module = todo.pop()
        if module in reached:
            continue
        reached.add(module)
        if is_own(module):
            parents = {module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)}
            todo += (edges.get(module, set()) | parents) - reached
    return reached


FRONTEND = ("fdspec.entrypoints.api_server", "fdspec.entrypoints.openai.api_server", "fdspec")


@pytest.mark.parametrize("module", [*FRONTEND, "fdspec.config", "fdspec.tokenizer", "fdspec.ops"])
def test_frontend_imports_no_paddle(imports, module):
    assert module in all_modules()
    reached = {top(name) for name in reachable_at_import(imports, module)}
    assert "paddle" not in reached


@pytest.mark.parametrize("module", FRONTEND)
def test_frontend_process_has_no_paddle_loaded(module):
    code = f"import {module}, sys; print(sorted({{'paddle', 'torch'}} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
