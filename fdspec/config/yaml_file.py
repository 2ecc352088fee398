# SPDX-License-Identifier: Apache-2.0
"""Read a YAML or JSON file as Settings that know their line. Does not know which keys exist."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from fdspec.config.mindie_file import flatten_mindie
from fdspec.config.settings import Setting, path_of
from fdspec.config.values import describe_json_error
from fdspec.core.errors import ConfigError

_EMPTY = ("", "null", "~")


def read_yaml(path: str) -> list[Setting]:
    """The settings of a file, in its order; those inside a map are its members.

    Raises:
        ConfigError: the file cannot be read, is not YAML or not a map, or has a key twice.
    """
    text = _read_text(path)
    if path.endswith(".json"):
        _check_json(path, text)
        # JSON may be indented with tabs, which YAML does not take; inside a text they are escaped.
        text = text.replace("\t", " ")
    try:
        with contextlib.closing(_Loader(text)) as loader:
            root = loader.get_single_node()
            if root is None or (isinstance(root, yaml.ScalarNode) and root.value in _EMPTY):
                return []
            if not isinstance(root, yaml.MappingNode):
                line = f"{path}:{_line(root)}"
                raise ConfigError(f"{line}: a map is needed, with lines like 'port: 8000'")
            return flatten_mindie(_MapReader(path, loader).read(root, ()))
    except yaml.YAMLError as error:
        raise ConfigError(_describe(path, error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply, or a map contains itself") from None


class _Loader(yaml.SafeLoader):
    """SafeLoader whose every complaint is a YAMLError with a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, str(error), node.start_mark
            ) from None

    def close(self) -> None:
        """For contextlib.closing."""
        self.dispose()


class _MapReader:
    """Turns the nodes of one file into settings."""

    def __init__(self, path: str, loader: Any) -> None:
        self._path = path
        self._loader = loader

    def read(self, node: yaml.MappingNode, prefix: tuple[str, ...]) -> list[Setting]:
        self._check_keys(node)
        self._loader.flatten_mapping(node)
        found: dict[tuple[str, ...], Setting] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            path = (*prefix, *path_of(key))
            members: list[Setting] = []
            if isinstance(value_node, yaml.MappingNode):
                members = self.read(value_node, path)
            value = self._loader.construct_object(value_node, deep=True)
            origin = f"{self._path}:{_line(key_node)}"
            spelled = ".".join([*prefix, key])
            found[path] = Setting(path, value, origin, spelled, members=tuple(members))
        return list(found.values())

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[tuple[str, ...], int] = {}
        for key_node, _ in node.value:
            key = self._key(key_node)
            if path_of(key) in lines:
                raise ConfigError(
                    f"{self._path}:{_line(key_node)}: {key} is already set on line "
                    f"{lines[path_of(key)]}; keep one of them"
                )
            lines[path_of(key)] = _line(key_node)

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise ConfigError(f"{self._path}:{_line(node)}: a key must be a plain word")
        return str(node.value)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file (from {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _check_json(path: str, text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not valid JSON: {describe_json_error(error)}") from None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _describe(path: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = path if mark is None else f"{path}:{mark.line + 1}"
    problem = getattr(error, "problem", None) or str(error)
    if "'\\t'" in problem:
        return f"{place}: a tab; YAML is indented with spaces only"
    if "expected a single document" in str(error) or "another document" in problem:
        return f"{place}: a second document starts here; a file holds one map"
    return f"{place}: not valid YAML: {problem}"
