# SPDX-License-Identifier: Apache-2.0
"""`quantization` as a map from kinds of layers to formats, taken apart into own keys.

`{dense: wint8, experts: wint4}`, or FastDeploy's spelling of the same: `{quantization: mix_quant,
dense_quant_type: wint8, moe_quant_type: wint4}`. Called by merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdspec.config.settings import Setting, members_of
from fdspec.config.values import parse_json
from fdspec.core.errors import ConfigError

_KEY = "quantization"
_PARTS = {
    "dense": _KEY,
    "dense_quant_type": _KEY,
    "experts": "expert_quantization",
    "moe_quant_type": "expert_quantization",
}
_EXAMPLE = '{"dense": "wint8", "experts": "wint4"}'
_MIXED = "mix_quant"


def take_apart(layer: Sequence[Setting]) -> list[Setting]:
    """A layer's settings, with those that stand for a map of formats in its place.

    Raises:
        ConfigError: the map has an unknown key, is no JSON, or says twice what a key decides.
    """
    result: list[Setting] = []
    for setting in layer:
        parts = _parts(setting)
        if parts is None:
            result.append(setting)
            continue
        others = [other for other in layer if other is not setting]
        named = [part.path for part in (*parts, *others)]
        if any(named.count(part.path) > 1 for part in parts):
            raise ConfigError(
                f"{setting.where}: the format of one kind of layers is named twice; keep one"
            )
        result += parts
    return result


def _parts(setting: Setting) -> list[Setting] | None:
    """The settings inside a map of formats; None if it is none."""
    if setting.path != (_KEY,):
        return None
    value = setting.value
    if isinstance(value, str) and value.strip().startswith("{"):
        value = parse_json(setting, f"--quantization '{_EXAMPLE}'")
    if not isinstance(value, dict):
        return None
    whole = setting if setting.members else setting.with_value(value)
    return [part for member in members_of(whole) if (part := _part(member)) is not None]


def _part(member: Setting) -> Setting | None:
    """The own setting of one key of the map; None if it says nothing more."""
    key = ".".join(member.path[1:])
    if key == _KEY:
        # Says that there are several, or the only one.
        return None if member.value == _MIXED else member.renamed(_KEY)
    if key not in _PARTS:
        raise ConfigError(
            f"{member.where}: unknown key; quantization is a format, or a map such as {_EXAMPLE}; "
            f"known keys: {', '.join(_PARTS)}, {_KEY}"
        )
    return member.renamed(_PARTS[key])
