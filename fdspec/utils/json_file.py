# SPDX-License-Identifier: Apache-2.0
"""Reads JSON objects from files; errors say where. Never writes. Model loading calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fdspec.core.errors import CheckpointError


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: names the file, and line and column if it isn't valid JSON.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if there is no such file."""
    return read_json_object(path) if path.exists() else {}
