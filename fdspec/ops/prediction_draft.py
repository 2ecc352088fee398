# SPDX-License-Identifier: Apache-2.0
"""prediction_draft: draft tokens from a text that the client expects the output to be like.

Keeps no state. Called by the prediction proposer.
"""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array
from fdspec.ops.dispatch import kernels

MAX_MATCH = 32
"""Most tokens of a match that are compared."""


def prediction_draft(prediction: Array, output: Array, *, max_draft: int) -> Array:
    """Draft what follows in a predicted text where the output stands in it.

    That is where most of the output's last tokens match, up to MAX_MATCH; of several places the one
    nearest to the output's own length, the earlier one if two are. A match of a single token counts
    only if it is in its place. Linear in the length of the prediction.

    Args:
        prediction: [predicted] int32.
        output: [length] int32, the output so far.
        max_draft: most draft tokens; 0 or less drafts nothing.

    Returns:
        [drafted] int32; nothing where the output is not like the prediction, or at its end.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit.
    """
    return kernels().prediction_draft(prediction, output, max_draft)


def reference_prediction_draft(prediction: Array, output: Array, *, max_draft: int) -> Array:
    """prediction_draft from its definition."""
    text, written = list(map(int, prediction)), list(map(int, output))
    place = len(written)
    matches = {end: _match_length(text[:end], written) for end in range(1, len(text))}
    good = {end: n for end, n in matches.items() if n > 1 or (n == 1 and end == place)}
    if not written:
        start = 0
    elif good:
        start = min(good, key=lambda end: (-good[end], abs(end - place), end))
    else:
        start = len(text)
    return np.array(text[start : start + max(max_draft, 0)], np.int32)


def _match_length(before: list[int], written: list[int]) -> int:
    length = 0
    while length < min(len(before), len(written), MAX_MATCH):
        if before[-1 - length] != written[-1 - length]:
            break
        length += 1
    return length
