# SPDX-License-Identifier: Apache-2.0
"""The `chat_template` of a configuration: a Jinja file, or the template itself."""

from __future__ import annotations

from pathlib import Path

from fdspec.core import ConfigError


def read_chat_template(value: str | None) -> str | None:
    """Text of a template; None stays None.

    Raises:
        ConfigError: there is no such file, and it is no template either.
    """
    if value is None or "{%" in value or "{{" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat_template {value!r} is neither a file nor a template: {error}"
        ) from error
