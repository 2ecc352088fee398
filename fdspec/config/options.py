# SPDX-License-Identifier: Apache-2.0
"""Options: what each configuration key is called, may hold and means, read off the dataclasses.

`option` declares a field; `Option` describes it to the readers, the converter and the help text.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["bool", "int", "float", "str", "strings", "map", "maps"]


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    separator: str | None = None,
    choices: Callable[[], tuple[str, ...]] | None = None,
) -> Any:
    """A dataclass field that is a configuration key.

    Args:
        default: value if nobody sets the key; without one the key is required.
        help: one or two sentences for `--help`; units included.
        minimum: smallest number allowed.
        maximum: largest number allowed.
        secret: never shown by --print-config, nor by repr.
        separator: a single text is split here (keys that hold several texts).
        choices: gives the allowed texts, where they are not known before run time.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "secret": secret,
        "separator": separator,
        "choices": choices,
    }
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration key.

    Attributes:
        path: ("max_num_seqs",), or (section, key) for the keys of a nested section.
        kind: type of the value.
        nullable: True if null is a value.
        choices: allowed texts; empty if any text is.
        default: dataclasses.MISSING if the key is required.
        help, minimum, maximum, secret, separator: as given to `option`.
    """

    path: tuple[str, ...]
    kind: Kind
    nullable: bool
    choices: tuple[str, ...]
    default: object
    help: str
    minimum: float | None
    maximum: float | None
    secret: bool
    separator: str | None

    @property
    def name(self) -> str:
        """Dotted name as in a YAML file."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """Spelling on the command line."""
        section = [part.replace("_", "-") for part in self.path[:-1]]
        last = self.path[-1] if section else self.path[-1].replace("_", "-")
        return "--" + ".".join([*section, last])

    @property
    def is_required(self) -> bool:
        """True if somebody must set it."""
        return self.default is dataclasses.MISSING

    @property
    def allowed(self) -> str:
        """What a value must be, for error messages."""
        text = self._allowed_value()
        return f"{text}, or null" if self.nullable else text

    def _allowed_value(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return "a text"
        if self.kind == "strings":
            return "a text or a list of texts"
        if self.kind == "map":
            return "a map"
        if self.kind == "maps":
            return "a list of maps"
        noun = "an integer" if self.kind == "int" else "a number"
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {_number(self.minimum)} to {_number(self.maximum)}"
        return noun if self.minimum is None else f"{noun} of at least {_number(self.minimum)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def options_of(part: type, section: str | None = None) -> list[Option]:
    """The options that a dataclass declares, in its order.

    Args:
        part: a dataclass whose fields were made by `option`.
        section: name of the nested section that they belong to; None for top-level keys.
    """
    hints = typing.get_type_hints(part)
    result = []
    for field in dataclasses.fields(part):
        kind, nullable, choices = _describe_type(hints[field.name])
        path = (field.name,) if section is None else (section, field.name)
        metadata = dict(field.metadata)
        if (find_choices := metadata.pop("choices")) is not None:
            choices = find_choices()
        result.append(Option(path, kind, nullable, choices, field.default, **metadata))
    return result


def _describe_type(hint: Any) -> tuple[Kind, bool, tuple[str, ...]]:
    nullable = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        nullable = len(members) < len(typing.get_args(hint))
        (hint,) = members
    if typing.get_origin(hint) is Literal:
        return "str", nullable, typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return "strings" if typing.get_args(hint)[0] is str else "maps", nullable, ()
    if typing.get_origin(hint) is Mapping:
        return "map", nullable, ()
    kinds: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    return kinds[hint], nullable, ()
