# SPDX-License-Identifier: Apache-2.0
"""Checks that hold however a configuration was made: from files, flags or Python.

Called by the dataclasses' `__post_init__`; the loader adds where each value came from.
"""

from __future__ import annotations

import math
from typing import Any

from fdspec.config.options import options_of
from fdspec.core.errors import ConfigError


class Contradiction(ConfigError):
    """Values that do not fit together.

    Args:
        keys: the fields involved, so that the loader can say where each was set.
        message: names keys, values and the remedy.
    """

    def __init__(self, keys: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.keys = keys


def check_numbers(part: Any) -> None:
    """Check the numbers and choices of a dataclass against its options. Does not modify.

    Raises:
        Contradiction: a number is out of range or a text is not one of the choices.
    """
    for option in options_of(type(part)):
        value = getattr(part, option.path[-1])
        if value is None and option.nullable:
            continue
        if not in_range(value, option.minimum, option.maximum) or (
            option.choices and value not in option.choices
        ):
            key = option.path[-1]
            raise Contradiction((key,), f"{key} must be {option.allowed}, got {value!r}")


def in_range(value: object, minimum: float | None, maximum: float | None) -> bool:
    """True if a number is within its limits; anything else is. NaN never is. Does not modify."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if math.isnan(value):
        return False
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
