# SPDX-License-Identifier: Apache-2.0
"""Linear: a projection with packed weights. Owns them; never quantises (the loader does)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.buffers import as_tensor
from fdspec.ops import PackedWeight, StepProgram, Value, weight_only_linear


class Linear(nn.Layer):
    """x * weight^T [+ bias] [+ residual].

    Args:
        weight: [out, in], packed in any format.
        bias: [out] float32, or None.
    """

    def __init__(self, weight: PackedWeight, bias: NDArray[np.float32] | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", as_tensor(weight.data))
        self.register_buffer("bias", None if bias is None else as_tensor(bias))
        # The same memory again, as plain attributes: a Layer looks its buffers up slowly.
        self._packed = weight
        self._bias = bias

    @property
    def packed_weight(self) -> PackedWeight:
        """The weight with its format."""
        return self._packed

    @property
    def bias_values(self) -> NDArray[np.float32] | None:
        """[out] float32, or None."""
        return self._bias

    def forward(self, x: Any, residual: Any | None = None) -> Any:
        """[rows, in] float32 -> [rows, out] float32; `residual` [rows, out] is added."""
        return weight_only_linear(x, self._packed, bias=self._bias, residual=residual)

    def lower(self, program: StepProgram, x: Value, residual: Value | None = None) -> Value:
        """Add this layer to a step program."""
        return program.linear(x, self._packed, bias=self._bias, residual=residual)
