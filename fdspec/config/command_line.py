# SPDX-License-Identifier: Apache-2.0
"""Split a command line into Settings. Does not know which options exist.

`--name value`, `--name=value`, `--flag`, `--no-flag`, `--name a b` (several texts), dotted names;
dashes and underscores are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fdspec.config.settings import Setting, path_of
from fdspec.core.errors import ConfigError

COMMAND_LINE = "command line"
ACTIONS = ("help", "version", "print_config", "dry_run")
_SHORT_OPTION = re.compile(r"-[A-Za-z]")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line in parts.

    Attributes:
        settings: in the order written.
        config: argument of --config.
        action: one of ACTIONS, or None for a normal run.
    """

    settings: tuple[Setting, ...]
    config: str | None
    action: str | None


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Split the arguments (without the program's name).

    Raises:
        ConfigError: a value without an option, or a wrong use of --config.
    """
    settings: list[Setting] = []
    config: str | None = None
    action: str | None = None
    for spelled, values in _split(argv):
        path = path_of(spelled.lstrip("-"))
        if spelled == "-h":
            path = ("help",)
        if path[0] in ACTIONS and len(path) == 1:
            if values:
                raise ConfigError(f"{spelled} takes no value, got {values[0]!r}")
            action = action or path[0]
        elif path == ("config",):
            if len(values) != 1 or not values[0]:
                raise ConfigError(f"{spelled} takes the path of one YAML file, got {values}")
            if config is not None:
                raise ConfigError(f"{spelled} is given twice: {config} and {values[0]}")
            config = values[0]
        else:
            settings.append(_setting(spelled, path, values))
    return CommandLine(tuple(settings), config, action)


def _setting(spelled: str, path: tuple[str, ...], values: list[str]) -> Setting:
    value: object = True
    if values:
        value = values[0] if len(values) == 1 else values
    elif path[0].startswith("no_"):
        value = False
        path = (path[0].removeprefix("no_"), *path[1:])
    return Setting(path, value, COMMAND_LINE, spelled, is_text=True)


def _split(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Options as written, each with the values that follow it."""
    found: list[tuple[str, list[str]]] = []
    for argument in argv:
        if argument.startswith("--") and len(argument) > 2:
            spelled, equals, value = argument.partition("=")
            found.append((spelled, [value] if equals else []))
        elif _SHORT_OPTION.match(argument):
            found.append((argument, []))
        elif not found:
            raise ConfigError(
                f"{argument!r} does not belong to an option; a model is given as --model {argument}"
            )
        else:
            found[-1][1].append(argument)
    return found
