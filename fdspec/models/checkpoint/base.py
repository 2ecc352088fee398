# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: the interface of all weight files, and the quantised tensor they may hold.

Owns no file access; never imports paddle. The weight loader reads through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import CheckpointError


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """A weight matrix as integer codes; value = scale * code + minimum.

    Attributes:
        codes: [out, in] int8 for symmetric codes, uint8 where `minima` is given.
        scales: [out, groups] float32, exact in float16.
        minima: [out, groups] float32, exact in float16, or None.
        bits: 4 (codes in -8..7 or 0..15) or 8.
        group_size: inputs that share a scale.
    """

    codes: NDArray[Any]
    scales: NDArray[np.float32]
    minima: NDArray[np.float32] | None
    bits: int
    group_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(out, in)."""
        return self.codes.shape

    def take_rows(self, order: NDArray[np.int64]) -> QuantizedTensor:
        """The same matrix with its rows in another order. Does not modify."""
        minima = None if self.minima is None else self.minima[order]
        return QuantizedTensor(
            self.codes[order], self.scales[order], minima, self.bits, self.group_size
        )

    def dequantize(self) -> NDArray[np.float32]:
        """[out, in] float32 values. Does not modify."""
        groups = self.scales.shape[1]
        codes = self.codes.reshape(len(self.codes), groups, -1).astype(np.float32)
        values = codes * self.scales[:, :, None]
        if self.minima is not None:
            values += self.minima[:, :, None]
        return values.reshape(self.codes.shape)


# float32, float16 and uint16 (the bits of bfloat16) arrays, or integer codes.
Tensor = NDArray[Any] | QuantizedTensor


class Checkpoint(Protocol):
    """Weights by name."""

    def names(self) -> Sequence[str]:
        """All tensors of the files."""
        ...

    def file_of(self, name: str) -> str:
        """Where a tensor is (or would be), for errors."""
        ...

    def bits_per_weight(self, name: str) -> float:
        """How many bits of the file a value takes, scales included; the tensor must exist."""
        ...

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor; a view of the mapped file where its type allows. Not to be written.

        Raises:
            CheckpointError: no such tensor, another shape, or a type that cannot be read.
        """
        ...


def check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...], file: object) -> None:
    """Raise CheckpointError if a tensor's shape is not the architecture's."""
    if found != expected:
        raise CheckpointError(
            f"{file}: tensor {name!r} has shape {list(found)}, the model needs {list(expected)}"
        )
