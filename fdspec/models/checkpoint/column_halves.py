# SPDX-License-Identifier: Apache-2.0
"""ColumnHalves: a checkpoint in which one wide matrix is two, each with half of the inputs.

A product with two vectors beside each other is the sum of two products; so nobody has to put the
vectors beside each other. Owns nothing. Called where draft heads are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fdspec.models.checkpoint.base import Checkpoint, QuantizedTensor, Tensor

FIRST, SECOND = ".first", ".second"


class ColumnHalves:
    """Another checkpoint, but for some matrices [out, 2 * in] called `{name}.weight`.

    Their halves [out, in] are called `{name}.first.weight` and `{name}.second.weight`.

    Args:
        inner: has the whole matrices.
        names: of these, without `.weight`.
    """

    def __init__(self, inner: Checkpoint, names: Sequence[str]) -> None:
        self._inner = inner
        self._halves = {
            f"{name}{half}.weight": (f"{name}.weight", index)
            for name in names
            for index, half in enumerate((FIRST, SECOND))
        }

    def names(self) -> Sequence[str]:
        """All tensors, halves in the place of whole matrices."""
        whole = {name for name, _ in self._halves.values()}
        return [*(name for name in self._inner.names() if name not in whole), *self._halves]

    def file_of(self, name: str) -> str:
        """Where a tensor is."""
        return self._inner.file_of(self._whole(name)[0])

    def bits_per_weight(self, name: str) -> float:
        """As in the other checkpoint."""
        return self._inner.bits_per_weight(self._whole(name)[0])

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor; raises as the other checkpoint does."""
        whole, half = self._whole(name)
        if half is None:
            return self._inner.get(name, shape)
        rows, width = shape
        tensor = self._inner.get(whole, (rows, 2 * width))
        values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        return np.ascontiguousarray(values[:, half * width : (half + 1) * width])

    def _whole(self, name: str) -> tuple[str, int | None]:
        return self._halves.get(name, (name, None))
