# SPDX-License-Identifier: Apache-2.0
"""Which of several settings of one key counts. Looks at names only, never at types.

A later layer wins. A whole section replaces the section of earlier layers; dotted keys change
single keys of it. Unknown names are found here. Called by the loader.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from fdspec.config.foreign import SECTION_ALIASES, foreign_keys
from fdspec.config.quantization_map import take_apart
from fdspec.config.schema import sections
from fdspec.config.settings import Setting, members_of, path_of
from fdspec.config.translation import is_off, own_name
from fdspec.config.values import parse_json
from fdspec.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Merged:
    """What is left of all layers.

    Attributes:
        settings: at most one for each own key, but for several spellings in the same layer.
        off: sections that may be off and that are switched off, or that nobody set.
        section_origins: where each section that was given as a whole comes from.
    """

    settings: tuple[Setting, ...]
    off: frozenset[str]
    section_origins: dict[str, str]


def merge(layers: Sequence[Sequence[Setting]]) -> Merged:
    """Merge layers, the weakest first.

    Raises:
        ConfigError: names every unknown key with its place and the nearest known name.
    """
    merger = _Merger()
    problems: list[str] = []
    for layer in layers:
        try:
            merger.add(layer)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    settings = tuple(setting for found in merger.found.values() for setting in found)
    return Merged(settings, merger.off_sections(), merger.section_origins)


# Letters that say enough of a name that was cut short.
_LEAST_BEGINNING = 4


class _Merger:
    """The state of a merge: settings by own name, the sections that are off."""

    def __init__(self) -> None:
        self.found: dict[str, list[Setting]] = {}
        self.off: set[str] = set()
        self.section_origins: dict[str, str] = {}
        self._sections = {section.key: section for section in sections() if section.key}
        self._known = {
            option.name for section in sections() for option in section.options
        } | foreign_keys().keys()

    def add(self, layer: Sequence[Setting]) -> None:
        """Let a stronger layer change the outcome so far."""
        single: list[Setting] = []
        layer = [_own_section(setting) for setting in take_apart(layer)]
        for setting in layer:
            if setting.name in self._sections:
                single = [other for other in single if other.path[0] != setting.name]
                single += self._open_section(setting)
        single += [setting for setting in layer if setting.name not in self._sections]
        problems = [self._unknown(setting) for setting in single if not self._knows(setting)]
        if problems:
            raise ConfigError("\n".join(problems))
        fresh: dict[str, dict[str, Setting]] = {}
        for setting in single:
            fresh.setdefault(own_name(setting), {})[setting.name] = setting
        for name, spellings in fresh.items():
            self.found.pop(name, None)
            self.found[name] = list(spellings.values())
            self.off.discard(name.partition(".")[0])

    def off_sections(self) -> frozenset[str]:
        """Sections that hold nothing at the end. Does not modify."""
        given = {name.partition(".")[0] for name in self.found} | self.section_origins.keys()
        nullable = {key for key, section in self._sections.items() if section.nullable}
        return frozenset(self.off | (nullable - given))

    def _knows(self, setting: Setting) -> bool:
        return setting.name in self._known

    def _open_section(self, setting: Setting) -> tuple[Setting, ...]:
        """Replace a section; returns the settings inside the new one."""
        key = setting.name
        for name in [name for name in self.found if name.startswith(key + ".")]:
            del self.found[name]
        self.section_origins[key] = setting.origin
        section = self._sections[key]
        example = f"--{key.replace('_', '-')} '{section.example}'"
        value = setting.value
        if isinstance(value, str) and value.strip().startswith("{"):
            value = parse_json(setting, example)
        if section.nullable and is_off(value):
            self.off.add(key)
            return ()
        if value is None:
            return ()
        self.off.discard(key)
        if not isinstance(value, dict):
            off = " or off" if section.nullable else ""
            raise ConfigError(
                f"{setting.where}: must be a map{off}, got {value!r}; example: {example}"
            )
        return members_of(setting if setting.members else setting.with_value(value))

    def _unknown(self, setting: Setting) -> str:
        section, _, key = setting.name.rpartition(".")
        prefix = section + "." if section else ""
        names = [
            name.removeprefix(prefix)
            for name in self._known | (self._sections.keys() if not section else set())
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        ]
        own = [name for name in names if prefix + name not in foreign_keys()]
        near = (
            difflib.get_close_matches(key, own, n=1)
            or difflib.get_close_matches(key, names, n=1)
            or [name for name in own if len(key) >= _LEAST_BEGINNING and name.startswith(key)][:1]
        )
        # A key of a section, written without the section.
        inside = [name for name in self._known if name.endswith(f".{key}")]
        if inside and not section:
            remedy = f"did you mean {_spell(min(inside), setting, full=True)}?"
        elif near:
            remedy = f"did you mean {_spell(prefix + near[0], setting)}?"
        elif own and section:
            remedy = f"known keys: {', '.join(sorted(own))}"
        else:
            remedy = "--help lists the keys"
        return f"{setting.where}: unknown key; {remedy}"


def _own_section(setting: Setting) -> Setting:
    """The setting under its own name if it is a section that is called otherwise elsewhere."""
    name = SECTION_ALIASES.get(setting.path[0])
    if name is None:
        return setting
    members = tuple(map(_own_section, setting.members))
    return dataclasses.replace(setting, path=(name, *setting.path[1:]), members=members)


def _spell(name: str, setting: Setting, *, full: bool = False) -> str:
    """A name in the manner of the setting that it replaces; `full`: with its section."""
    if not setting.spelled.startswith("--") or not setting.is_text and "." in setting.spelled:
        return name if full else name.rpartition(".")[2]
    # Of a flag for one server of a launch, the setting knows only what stands after the server.
    around = path_of(setting.spelled.lstrip("-"))[: -len(setting.path)]
    section, _, key = name.rpartition(".")
    if around:
        return "--" + ".".join((*around, name))
    if section:
        return f"--{section.replace('_', '-')}.{key}"
    return "--" + key.replace("_", "-")
