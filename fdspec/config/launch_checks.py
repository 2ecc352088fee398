# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a launch that none of its servers has alone. Called by `launch.py`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from fdspec.config.loader import LoadedConfig
from fdspec.config.options import Option, options_of
from fdspec.config.schema import sections
from fdspec.config.settings import Setting
from fdspec.config.topic import TopicConfig
from fdspec.core.errors import ConfigError

_LEAST_LIKENESS = 0.7
# Of workers, between which requests move.
_SAME = (
    "quantization",
    "expert_quantization",
    "max_model_len",
    "rope_theta",
    "kv_cache_dtype",
    "speculative_config.verify_strategy",
)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that somebody may have meant; None if there is none like it."""
    near = difflib.get_close_matches(name.lower(), names, 1, _LEAST_LIKENESS)
    return near[0] if near else None


def check_sections(settings: Sequence[Setting], known: Sequence[str]) -> None:
    """Find sections of a launch that are misspelt, such as `server` for `servers`.

    Raises:
        ConfigError: there is one.
    """
    for setting in settings:
        is_section = len(setting.path) > 1 or setting.value is None
        near = nearest(setting.path[0], known)
        if near in (None, setting.path[0]) or not (is_section or isinstance(setting.value, dict)):
            continue
        right = ".".join((str(near), *setting.path[1:]))
        dashes = "--" if setting.spelled.startswith("--") else ""
        raise ConfigError(f"{setting.where}: unknown key; did you mean {dashes}{right}?")


def check_name(setting: Setting, name: str, roles: Sequence[str]) -> None:
    """Refuse the name of a server without a role if it looks like another role than mixed.

    It does if it begins with the role's name (`decode_fast`), or nearly is it (`decoder`).

    Raises:
        ConfigError: it does.
    """
    begins = [role for role in roles if name.lower().startswith(role)]
    near = begins[0] if begins else nearest(name, roles)
    if name in roles or near in (None, "mixed"):
        return
    raise ConfigError(
        f"{setting.where}: is no role, so this server would be mixed; did you mean {near}? "
        f"Another name is kept by a key of its own, splitwise_role: {near} (or mixed)"
    )


def check_alike(servers: Sequence[tuple[str, LoadedConfig]]) -> None:
    """Compare what must be equal: the topic of all, the model and cache of those that compute.

    Args:
        servers: names and configurations.

    Raises:
        ConfigError: a key differs; names both places.
    """
    reason = "servers of a launch share one topic"
    for found in options_of(TopicConfig):
        if found.name.startswith("scheduler_"):
            _check_equal(found, "topic", servers, reason)
    workers = [server for server in servers if server[1].config.topic.splitwise_role != "frontend"]
    handing_over = [server for server in workers if server[1].config.topic.hands_over]
    reason = "requests move between them, so they must be equal; set it once, for all servers"
    for section in sections():
        for found in section.options:
            if found.name in _SAME:
                _check_equal(found, section.field, workers, reason)
            elif found.name == "block_size":
                _check_equal(found, section.field, handing_over, reason)


def _check_equal(
    option: Option, field: str, servers: Sequence[tuple[str, LoadedConfig]], reason: str
) -> None:
    for other in servers[1:]:
        both = (servers[0], other)
        values = [_value(option, getattr(loaded.config, field)) for _, loaded in both]
        if values[0] != values[1]:
            places = [
                f"{name} ({loaded.origins.get(option.name, 'default')})" for name, loaded in both
            ]
            one, two = ("null" if value is None else value for value in values)
            shown = "" if option.secret else f": {one} and {two}"
            where = " and ".join(places)
            raise ConfigError(f"{option.name} differs between {where}{shown}; {reason}")


def _value(option: Option, part: object) -> object:
    """Without speculation, tokens are chosen as by the default strategy."""
    return option.default if part is None else getattr(part, option.path[-1])
