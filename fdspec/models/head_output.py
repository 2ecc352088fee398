# SPDX-License-Identifier: Apache-2.0
"""Some rows of an output matrix, for a head that drafts a part of the vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fdspec.layers.linear import Linear
from fdspec.ops import dequantize_weight, quantize_weight


def output_rows(output: Linear, token_ids: NDArray[np.int32]) -> Linear:
    """The rows of these tokens, in the format of the whole.

    Args:
        output: [vocab, hidden].
        token_ids: [n] int32, inside the vocabulary.
    """
    packed = output.packed_weight
    rows = np.ascontiguousarray(dequantize_weight(packed)[token_ids])
    bias = output.bias_values
    return Linear(quantize_weight(rows, packed.format), None if bias is None else bias[token_ids])
