# SPDX-License-Identifier: Apache-2.0
"""MindIE's config.json: its nested sections as one flat list of settings, as other files have them.

Knows which names are sections; what becomes of the keys is in `foreign.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from fdspec.config.settings import Setting, members_of
from fdspec.core.errors import ConfigError

_SECTIONS = ("ServerConfig", "BackendConfig", "ModelDeployConfig", "ScheduleConfig")
_MODELS = "ModelConfig"


def flatten_mindie(settings: Sequence[Setting]) -> list[Setting]:
    """Settings of a file; those inside of MindIE's sections stand by themselves.

    Raises:
        ConfigError: a section is no map, or there is not exactly one model.
    """
    return list(_flatten(settings))


def _flatten(settings: Sequence[Setting]) -> Iterator[Setting]:
    for setting in settings:
        key = setting.path[-1]
        if key in _SECTIONS:
            if not isinstance(setting.value, dict):
                raise ConfigError(f"{setting.where}: must be a map, got {setting.value!r}")
            yield from _flatten([_bare(member) for member in members_of(setting)])
        elif key == _MODELS:
            yield from _flatten([_bare(member) for member in members_of(_only_model(setting))])
        else:
            yield setting


def _only_model(setting: Setting) -> Setting:
    models = setting.value if isinstance(setting.value, list) else [setting.value]
    if len(models) != 1 or not isinstance(models[0], dict):
        raise ConfigError(
            f"{setting.where}: must hold exactly one map, because one model is served; got "
            f"{len(models)} entries"
        )
    return dataclasses.replace(setting, value=models[0], spelled=f"{setting.spelled}[0]")


def _bare(setting: Setting) -> Setting:
    """The setting without the section in its name."""
    below = len(setting.path) - 1
    members = tuple(
        dataclasses.replace(member, path=member.path[below:]) for member in setting.members
    )
    return dataclasses.replace(setting, path=setting.path[below:], members=members)
