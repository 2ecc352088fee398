# SPDX-License-Identifier: Apache-2.0
"""Names of weight formats, for the served model and for a drafting one."""

from __future__ import annotations

import re

from fdspec.config.checks import Contradiction

QUANTIZATIONS = "none, bfloat16, wint8, wint4, wint8_a16, wint4_a16"
# The names that fdspec.ops.WeightFormat reads.
_QUANTIZATION = re.compile(
    r"none|bfloat16|(wint4(_channel|_g(32|64|128))?(_min)?|wint8(_channel|_g(32|64|128))?)(_a16)?"
)


def check_quantization(key: str, name: str | None) -> None:
    """Check a weight format's name; None is as the checkpoint has it.

    Args:
        key: that holds it.
        name: the format.

    Raises:
        Contradiction: no such format.
    """
    if name is None or _QUANTIZATION.fullmatch(name):
        return
    raise Contradiction(
        (key,),
        f"{key} must be one of {QUANTIZATIONS} (after the bits may follow _g32, _g64, "
        "_g128 or _channel for groups, and for 4 bits _min for a minimum), or null, got "
        f"{name!r}",
    )
