# SPDX-License-Identifier: Apache-2.0
"""Put settings into fdspec's own names and values, by the tables of `foreign*.py`.

Looks at one setting at a time; called by merge and loader.
"""

from __future__ import annotations

from dataclasses import dataclass

from fdspec.config.foreign import SPECULATIVE, foreign_keys
from fdspec.config.foreign_values import (
    METHOD_ALIASES,
    NEAREST_VALUES,
    OFF_VALUES,
    UNAVAILABLE_METHODS,
    VALUE_ALIASES,
)
from fdspec.config.settings import Setting
from fdspec.config.speculative import METHODS
from fdspec.config.values import plain_value
from fdspec.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Translation:
    """A setting in fdspec's own words; None if nothing is left of it."""

    setting: Setting | None
    warning: str | None = None


def own_name(setting: Setting) -> str:
    """Name of the own key that a setting decides about; its own name if there is none."""
    key = foreign_keys().get(setting.name)
    if key is None or not key.to:
        return setting.name
    value = plain_value(setting)
    if key.rewrite is None or key.rewrite(value) is not None:
        return key.to
    return setting.name if value is None else key.otherwise or setting.name


def translate(setting: Setting) -> Translation:
    """Put a setting into fdspec's own names and values.

    Raises:
        ConfigError: the key asks for something that is not there and cannot be left out.
    """
    key = foreign_keys().get(setting.name)
    if key is None:
        return Translation(_own_value(setting))
    value = plain_value(setting)
    name = own_name(setting)
    if name != setting.name or name == key.otherwise and value is not None:
        renamed = setting.renamed(name)
        if key.rewrite is not None and name == key.to:
            renamed = renamed.with_value(key.rewrite(value))
        return Translation(_own_value(renamed))
    if value is None:
        return Translation(None)
    if any(value == known and type(value) is type(known) for known in key.honoured):
        return Translation(None)
    if key.refused:
        raise ConfigError(f"{setting.where}: {value!r} is not possible: {key.reason}")
    return Translation(None, f"{setting.where}: has no effect: {key.reason}")


def is_off(value: object) -> bool:
    """True if a value of speculative_config turns speculation off."""
    if isinstance(value, str):
        value = value.strip().lower()
    return value == {} or value in OFF_VALUES


def _own_value(setting: Setting) -> Setting:
    """Replace the foreign spellings of values."""
    if not isinstance(setting.value, str):
        return setting
    text = setting.value.strip().lower()
    if setting.name == f"{SPECULATIVE}.method":
        return setting.with_value(_method(setting, text.replace("-", "_")))
    if nearest := NEAREST_VALUES.get(setting.name, {}).get(text):
        raise ConfigError(
            f"{setting.where}: {setting.value} is not available in this version; "
            f"the nearest is {nearest}"
        )
    aliases = VALUE_ALIASES.get(setting.name, {})
    return setting.with_value(aliases[text]) if text in aliases else setting


def _method(setting: Setting, text: str) -> str:
    method = METHOD_ALIASES.get(text, text)
    if method in UNAVAILABLE_METHODS:
        raise ConfigError(
            f"{setting.where}: {setting.value} is not available in this version; "
            f"available: {', '.join(METHODS)} (or off)"
        )
    return method
