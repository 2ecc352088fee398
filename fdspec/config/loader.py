# SPDX-License-Identifier: Apache-2.0
"""Merge defaults, environment, YAML file and command line into one EngineConfig.

Command line > YAML > environment > default. Every error says where the value was written. Called
by the entry points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdspec.config.checks import Contradiction
from fdspec.config.command_line import read_command_line
from fdspec.config.engine_config import EngineConfig
from fdspec.config.foreign import SPECULATIVE
from fdspec.config.merge import Merged, merge
from fdspec.config.notices import notices
from fdspec.config.options import Option
from fdspec.config.render import help_text, render_config
from fdspec.config.schema import Section, sections
from fdspec.config.settings import Setting, path_of
from fdspec.config.speculative import SpeculativeConfig, fill_method, fill_ngram_sizes
from fdspec.config.translation import translate
from fdspec.config.values import convert
from fdspec.config.yaml_file import read_yaml
from fdspec.core.errors import ConfigError
from fdspec.utils.logging import get_logger
from fdspec.version import __version__

DEFAULT = "default"
DERIVED = "derived"
_VARIABLES = {"FD_API_KEY": "api_key", "FD_SCHEDULER_PASSWORD": "scheduler_password"}


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and how it came about.

    Attributes:
        config: the configuration.
        origins: for every dotted key: "configs/x.yaml:3", "command line", "argument",
            "environment FD_API_KEY", "default" or "derived".
        warnings: one line for each key that was accepted but has no effect, and for each setting
            that makes the output differ from plain decoding.
    """

    config: EngineConfig
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


def load_config(argv: Sequence[str]) -> LoadedConfig:
    """Configuration of a command line (without the program's name), with its --config file.

    Raises:
        ConfigError: names place, key, value and remedy of everything that is wrong.
    """
    command_line = read_command_line(argv)
    layers = [environment()]
    if command_line.config is not None:
        layers.append(read_yaml(command_line.config))
    return assemble([*layers, command_line.settings])


def config_from_options(
    options: Mapping[str, object], config_file: str | None = None
) -> LoadedConfig:
    """Configuration of Python keyword arguments, with the same keys as a YAML file.

    Args:
        options: keys and values; they win over the file's.
        config_file: YAML file to start from.

    Raises:
        ConfigError: names key, value and remedy of everything that is wrong.
    """
    settings = [Setting(path_of(key), value, "argument", key) for key, value in options.items()]
    from_file = [] if config_file is None else read_yaml(config_file)
    return assemble([from_file, settings])


def load_config_or_exit(
    argv: Sequence[str], program: str, dry_run: Callable[[EngineConfig], int] | None = None
) -> LoadedConfig:
    """`load_config` for a program: answers --help, --version and --print-config, logs the warnings.

    Args:
        argv: command line without the program's name.
        program: its name, for messages.
        dry_run: answers --dry-run and returns the exit status; None: the program has none.

    Raises:
        SystemExit: after an answer; 2 with a message on standard error after a ConfigError.
    """
    try:
        action = read_command_line(argv).action
        if action == "dry_run" and dry_run is None:
            raise ConfigError("--dry-run belongs to fdspec.entrypoints.api_server")
        if action == "help":
            print(help_text(program))
            raise SystemExit(0)
        if action == "version":
            print(f"fdspec {__version__}")
            raise SystemExit(0)
        loaded = load_config(argv)
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    logger = get_logger(__name__)
    for warning in loaded.warnings:
        logger.warning(warning)
    if action == "dry_run" and dry_run is not None:
        raise SystemExit(dry_run(loaded.config))
    if action == "print_config":
        print(render_config(loaded.config, loaded.origins))
        raise SystemExit(0)
    return loaded


def environment() -> list[Setting]:
    """The settings of environment variables, the weakest layer."""
    return [
        Setting((key,), text, f"environment {name}", name, is_text=True)
        for name, key in _VARIABLES.items()
        if (text := os.environ.get(name, ""))
    ]


def assemble(layers: Sequence[Sequence[Setting]]) -> LoadedConfig:
    """The configuration of layers, the weakest first.

    Raises:
        ConfigError: names place, key, value and remedy of everything that is wrong.
    """
    merged = merge(layers)
    warnings: list[str] = []
    chosen = _convert_all(merged, warnings)
    problems: list[str] = []
    parts: dict[str, Any] = {}
    for section in sections():
        try:
            parts[section.field] = _build(section, chosen, merged.off)
        except ConfigError as error:
            problems.append(_with_origins(error, section, chosen))
    if problems:
        raise ConfigError("\n".join(problems))
    config = _build_whole(parts, chosen)
    warnings += notices(config)
    return LoadedConfig(config, _origins(config, chosen, merged), tuple(warnings))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A checked value, the setting that it came from, and the value that was written there."""

    value: object
    setting: Setting
    written: object


def _convert_all(merged: Merged, warnings: list[str]) -> dict[tuple[str, ...], _Chosen]:
    options = {option.path: option for section in sections() for option in section.options}
    chosen: dict[tuple[str, ...], _Chosen] = {}
    problems: list[str] = []
    for setting in merged.settings:
        try:
            translation = translate(setting)
            if translation.warning is not None:
                warnings.append(translation.warning)
            own = translation.setting
            if own is not None:
                value = convert(options[own.path], own)
                if options[own.path].kind == "maps":
                    value = _proposers(own, value, warnings)
                fresh = _Chosen(value, own, setting.value)
                _check_rivals(chosen.get(own.path), fresh)
                chosen[own.path] = fresh
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return chosen


def _check_rivals(earlier: _Chosen | None, later: _Chosen) -> None:
    """Two spellings of one key in one place must agree; merge leaves only such pairs."""
    if earlier is not None and earlier.value != later.value:
        raise ConfigError(
            f"{later.setting.where}: {_show(later.written)} contradicts {earlier.setting.spelled} "
            f"({_show(earlier.written)}), which decides the same; keep one of them"
        )


def _show(written: object) -> str:
    """A value as people write it."""
    return str(written).lower() if isinstance(written, bool) else str(written)


def _proposers(
    setting: Setting, maps: object, warnings: list[str]
) -> tuple[SpeculativeConfig, ...]:
    """The members of a hybrid; each map is read like a speculative_config of its own."""
    assert isinstance(maps, tuple)
    members = []
    for index, values in enumerate(maps):
        layer = [
            Setting(
                (SPECULATIVE, *path_of(name)),
                value,
                setting.origin,
                f"{setting.spelled}[{index}].{name}",
            )
            for name, value in values.items()
        ]
        chosen = _convert_all(merge([layer]), warnings)
        section = next(section for section in sections() if section.part is SpeculativeConfig)
        try:
            member = _build(section, chosen, frozenset())
        except ConfigError as error:
            place = f"{setting.where}[{index}]"
            raise ConfigError(f"{place}: {_with_origins(error, None, chosen)}") from None
        assert isinstance(member, SpeculativeConfig)
        members.append(member)
    return tuple(members)


def _build(
    section: Section, chosen: Mapping[tuple[str, ...], _Chosen], off: frozenset[str]
) -> object:
    values = {
        option.path[-1]: chosen[option.path].value
        for option in section.options
        if option.path in chosen
    }
    if section.key in off:
        return None
    if section.part is SpeculativeConfig:
        fill_ngram_sizes(values)
        fill_method(values)
    for option in section.options:
        if option.is_required and option.path[-1] not in values:
            raise ConfigError(_missing(option))
    return section.part(**values)


def _build_whole(
    parts: Mapping[str, Any], chosen: Mapping[tuple[str, ...], _Chosen]
) -> EngineConfig:
    try:
        return EngineConfig(**parts)
    except Contradiction as error:
        raise ConfigError(_with_origins(error, None, chosen)) from None


def _missing(option: Option) -> str:
    if len(option.path) == 1:
        return f"{option.name} is missing: give {option.flag} or the YAML key {option.name}"
    return (
        f"{option.name} is missing; it must be {option.allowed}; "
        f"{option.path[0]}: off turns the whole section off"
    )


def _with_origins(
    error: ConfigError, section: Section | None, chosen: Mapping[tuple[str, ...], _Chosen]
) -> str:
    if not isinstance(error, Contradiction):
        return str(error)
    prefix = () if section is None or section.key is None else (section.key,)
    places = [
        f"{chosen[(*prefix, key)].setting.spelled}: {chosen[(*prefix, key)].setting.origin}"
        for key in error.keys
        if (*prefix, key) in chosen
    ]
    name = ".".join(prefix) + ": " if prefix else ""
    return f"{name}{error}" + (f" ({'; '.join(places)})" if places else "")


def _origins(
    config: EngineConfig, chosen: Mapping[tuple[str, ...], _Chosen], merged: Merged
) -> dict[str, str]:
    origins: dict[str, str] = {}
    for section in sections():
        part = getattr(config, section.field)
        if section.key is not None:
            origins[section.key] = merged.section_origins.get(section.key, DEFAULT)
        if part is None:
            continue
        for option in section.options:
            value = getattr(part, option.path[-1])
            if option.path in chosen and chosen[option.path].value == value:
                origins[option.name] = chosen[option.path].setting.origin
            else:
                origins[option.name] = DEFAULT if value == option.default else DERIVED
    return origins
