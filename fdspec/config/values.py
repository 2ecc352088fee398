# SPDX-License-Identifier: Apache-2.0
"""Turn what somebody wrote into the type that an option needs, or say what is wrong with it.

YAML and JSON values must have the right type already; text from a command line is converted.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping

import yaml

from fdspec.config.checks import in_range
from fdspec.config.options import Option
from fdspec.config.settings import Setting
from fdspec.core.errors import ConfigError

_BRACKETS = re.compile(r"\[(.*)\]", re.DOTALL)
_TRUE = ("true", "yes", "on", "1")
# Of Chinese input methods.
_LOOKALIKES = {"\uff0c": ",", "\uff1a": ":", "\u201c": '"', "\u201d": '"', "\u3000": " "}
_EXAMPLES = {"map": '{"key": 1}', "maps": '[{"method": "suffix"}, {"method": "ngram"}]'}
_FALSE = ("false", "no", "off", "0")


def convert(option: Option, setting: Setting) -> object:
    """The setting's value in the option's type.

    Raises:
        ConfigError: it has another type, is out of range or is not one of the choices; names
            place, key, value and what is allowed.
    """
    value = setting.value
    if option.kind in ("map", "maps") and isinstance(value, str):
        value = parse_json(setting, _EXAMPLES[option.kind])
    if option.nullable and (value is None or (setting.is_text and value == "null")):
        return None
    try:
        if option.kind == "strings":
            return _to_strings(_without_brackets(option, setting), option.separator)
        if option.kind == "map":
            return _to_map(value)
        if option.kind == "maps":
            return _to_maps(value)
        if isinstance(value, list):
            raise ValueError
        converted = _CONVERTERS[option.kind](value, setting.is_text)
    except ValueError:
        raise ConfigError(_complaint(option, setting)) from None
    if option.choices:
        converted = _match_choice(option.choices, str(converted))
    if converted is None or not in_range(converted, option.minimum, option.maximum):
        raise ConfigError(_complaint(option, setting))
    return converted


def plain_value(setting: Setting) -> object:
    """The value as YAML would read it; for keys without an option of their own."""
    if not setting.is_text or not isinstance(setting.value, str):
        return setting.value
    try:
        return yaml.safe_load(setting.value)
    except yaml.YAMLError:
        return setting.value


def parse_json(setting: Setting, example: str) -> object:
    """The value of a setting whose text is JSON; `null` and friends included.

    Args:
        setting: the setting.
        example: of a right one, to end a complaint with.

    Raises:
        ConfigError: not JSON, or a key twice; shows the position and an example.
    """
    text = str(setting.value)
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        problem = describe_json_error(error)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:
        problem = str(error)
    raise ConfigError(f"{setting.where}: not valid JSON: {problem}; example: {example}")


def describe_json_error(error: json.JSONDecodeError) -> str:
    """What is wrong with a JSON text, and where: line, column, and what stands before it."""
    text, position = error.doc, error.pos
    start = max(position - 20, 0)
    place = f"line {error.lineno}, column {error.colno}, after {text[start:position]!r}"
    found = text[position : position + 1]
    if found in _LOOKALIKES:
        return f"the full-width {found!r} at {place}; write {_LOOKALIKES[found]!r}"
    if error.msg == "Expecting ',' delimiter":
        return f"a comma is missing at {place}"
    if error.msg.startswith(("Expecting property name", "Illegal trailing comma")):
        return f"a key in double quotes must stand at {place} (no comma after the last one)"
    return f"{error.msg} at {place}"


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice")
        result[key] = value
    return result


def _to_bool(value: object, is_text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if is_text and str(value).lower() in _TRUE + _FALSE:
        return str(value).lower() in _TRUE
    raise ValueError


def _to_int(value: object, is_text: bool) -> int:
    if is_text and isinstance(value, str):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError


def _to_float(value: object, is_text: bool) -> float:
    # YAML 1.1 reads 1e-3 as a text, so a text that is a number is one from any source.
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value)
    raise ValueError


def _to_str(value: object, is_text: bool) -> str:
    if isinstance(value, str):
        return value
    raise ValueError


def _without_brackets(option: Option, setting: Setting) -> object:
    """On a command line, `[a, b]` is a list as in YAML; brackets of a secret belong to it."""
    value = setting.value
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    inner = _BRACKETS.fullmatch(text.strip()) if setting.is_text and not option.secret else None
    if inner is None:
        return value
    return [part for word in inner[1].split(",") if (part := word.strip().strip("\"'"))]


def _to_strings(value: object, separator: str | None) -> tuple[str, ...]:
    if isinstance(value, str):
        parts = [value] if separator is None else value.split(separator)
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    if value is None:
        return ()
    raise ValueError


def _to_map(value: object) -> dict[str, object]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise ValueError


def _to_maps(value: object) -> tuple[dict[str, object], ...]:
    if isinstance(value, list | tuple):
        return tuple(map(_to_map, value))
    raise ValueError


_CONVERTERS = {"bool": _to_bool, "int": _to_int, "float": _to_float, "str": _to_str}


def _match_choice(choices: tuple[str, ...], text: str) -> str | None:
    lowered = {choice.lower(): choice for choice in choices}
    return lowered.get(text.lower())


def _complaint(option: Option, setting: Setting) -> str:
    value = setting.value
    text = f"{setting.where}: must be {option.allowed}, got {value!r}"
    if isinstance(value, list) and setting.is_text:
        return f"{text}; it takes one value"
    if isinstance(value, str) and option.kind in ("int", "bool") and not setting.is_text:
        return f"{text} (a text)"
    if value is True and setting.is_text:
        return f"{setting.where}: needs a value: {option.allowed}"
    near = difflib.get_close_matches(str(value).lower(), option.choices or (), n=1)
    return f"{text}; did you mean {near[0]}?" if near else text
