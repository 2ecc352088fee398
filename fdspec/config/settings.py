# SPDX-License-Identifier: Apache-2.0
"""Setting: one key as somebody wrote it, before its name and value have been checked.

The readers (YAML file, command line, Python options) make them; `foreign.py` renames them; the
loader merges them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """One key and its value.

    Attributes:
        path: name in parts, with underscores: ("speculative_config", "method").
        value: as read: YAML or JSON types, or the texts of a command line.
        origin: where it was written: "configs/x.yaml:3", "command line", "argument".
        spelled: the key as it was written, for messages.
        is_text: True if the value is text that stands for any type (command line, environment).
        members: the keys inside a YAML map, with their own lines.
    """

    path: tuple[str, ...]
    value: object
    origin: str
    spelled: str
    is_text: bool = False
    members: tuple[Setting, ...] = ()

    @property
    def name(self) -> str:
        """Dotted name."""
        return ".".join(self.path)

    @property
    def where(self) -> str:
        """Place and spelling, to start a message with."""
        if self.spelled.startswith("-"):
            return self.spelled
        return f"{self.origin}: {self.spelled}"

    def renamed(self, name: str) -> Setting:
        """The same setting under another dotted name; its spelling stays."""
        return dataclasses.replace(self, path=tuple(name.split(".")))

    def with_value(self, value: object) -> Setting:
        """The same setting with a value of its final type."""
        return dataclasses.replace(self, value=value, is_text=False)


def path_of(key: str) -> tuple[str, ...]:
    """Parts of a key; dashes count as underscores."""
    return tuple(key.replace("-", "_").split("."))


def members_of(setting: Setting) -> tuple[Setting, ...]:
    """The keys inside a setting whose value is a map, each as a setting of its own."""
    assert isinstance(setting.value, dict)
    if setting.members:
        return setting.members
    return tuple(
        Setting(
            path=(*setting.path, *path_of(str(key))),
            value=value,
            origin=setting.origin,
            spelled=f"{setting.spelled}.{key}",
        )
        for key, value in setting.value.items()
    )
