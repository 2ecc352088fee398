# SPDX-License-Identifier: Apache-2.0
"""Typed access to the keys of a model's configuration, with errors that name file and key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from fdspec.core.errors import CheckpointError


class ConfigKeys:
    """The keys of one file, or of one of its maps.

    Args:
        file: for errors.
        values: what it holds.
        prefix: of the keys in errors.
    """

    def __init__(self, file: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.file = file
        self._values = values
        self._prefix = prefix

    def raw(self, key: str) -> Any:
        """The value as it is; None if there is none."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; raises CheckpointError if there is none and no default."""
        value = self.optional_integer(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self.file}: {self._prefix + key!r} is missing")
        return value

    def optional_integer(self, key: str) -> int | None:
        """An integer, or None if there is none."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, value, "an integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number; raises CheckpointError if there is none and no default."""
        value = self._values.get(key, default)
        if value is None:
            raise CheckpointError(f"{self.file}: {self._prefix + key!r} is missing")
        return self.as_number(key, value)

    def as_number(self, key: str, value: Any) -> float:
        """A value that was found under a key, as a number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            self.fail(key, value, "a number")
        return float(value)

    def fail(self, key: str, value: object, wanted: str) -> NoReturn:
        """Raise CheckpointError about a value that is not what it must be."""
        raise CheckpointError(f"{self.file}: {self._prefix + key!r} must be {wanted}: {value!r}")
