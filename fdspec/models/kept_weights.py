# SPDX-License-Identifier: Apache-2.0
"""WeightLoader's two companions: one keeps what it loads in a file, the other reads such a file.

All three are a WeightSource, so the building of a model is the same. Never imports paddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fdspec.models.packed_file import PackedFile, PackedFileWriter
from fdspec.models.weights import Role, WeightLoader
from fdspec.ops import PackedWeight


class WeightSource(Protocol):
    """Where the building of a model takes its weights from; see WeightLoader."""

    def vector(
        self,
        name: str,
        size: int,
        row_order: NDArray[np.int64] | None = None,
        *,
        stored_shape: tuple[int, ...] | None = None,
    ) -> NDArray[np.float32]:
        """A norm's weight or a bias, [size] float32."""
        ...

    def matrix(self, name: str, shape: tuple[int, int], role: Role) -> PackedWeight:
        """One matrix [out, in], packed."""
        ...

    def fused(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        row_orders: Sequence[NDArray[np.int64] | None],
    ) -> PackedWeight:
        """Projections of the same input as one matrix, one under the other."""
        ...

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> PackedWeight:
        """Matrices of all experts of a layer as one, one under the other."""
        ...

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """All weights have been taken."""
        ...


class KeepingLoader:
    """Loads from a checkpoint and keeps everything in a file; weights are views of it.

    Raises:
        OSError: from every method: the file cannot be written.
    """

    def __init__(self, loader: WeightLoader, writer: PackedFileWriter) -> None:
        self._loader = loader
        self._writer = writer

    def vector(
        self,
        name: str,
        size: int,
        row_order: NDArray[np.int64] | None = None,
        *,
        stored_shape: tuple[int, ...] | None = None,
    ) -> NDArray[np.float32]:
        """See WeightSource."""
        vector = self._loader.vector(name, size, row_order, stored_shape=stored_shape)
        return self._writer.add_vector(name, vector)

    def matrix(self, name: str, shape: tuple[int, int], role: Role) -> PackedWeight:
        """See WeightSource."""
        return self._writer.add_matrix(name, self._loader.matrix(name, shape, role))

    def fused(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        row_orders: Sequence[NDArray[np.int64] | None],
    ) -> PackedWeight:
        """See WeightSource."""
        weight = self._loader.fused(names, shapes, row_orders)
        return self._writer.add_matrix(_joint_name(names), weight)

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> PackedWeight:
        """See WeightSource."""
        return self._writer.add_matrix(_stack_name(names), self._loader.stacked(names, shapes))

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Raises CheckpointError if the checkpoint has more; see WeightLoader."""
        self._loader.finish(ignored)


class KeptWeights:
    """Takes every weight from a file that a KeepingLoader filled.

    Raises:
        DamagedFile: from every method: the file does not hold what the model needs.
    """

    def __init__(self, file: PackedFile) -> None:
        self._file = file

    def vector(
        self,
        name: str,
        size: int,
        row_order: NDArray[np.int64] | None = None,
        *,
        stored_shape: tuple[int, ...] | None = None,
    ) -> NDArray[np.float32]:
        """See WeightSource; the file has the rows in order already."""
        return self._file.vector(name, size)

    def matrix(self, name: str, shape: tuple[int, int], role: Role) -> PackedWeight:
        """See WeightSource."""
        return self._file.matrix(name, shape)

    def fused(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        row_orders: Sequence[NDArray[np.int64] | None],
    ) -> PackedWeight:
        """See WeightSource; the file has the rows in order already."""
        return self._file.matrix(_joint_name(names), (sum(out for out, _ in shapes), shapes[0][1]))

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> PackedWeight:
        """See WeightSource."""
        rows = sum(out for out, _ in shapes)
        return self._file.matrix(_stack_name(names), (rows, shapes[0][1]))

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Nothing to check: the file was made from a checkpoint that passed."""


def _joint_name(names: Sequence[str]) -> str:
    return " + ".join(names)


def _stack_name(names: Sequence[str]) -> str:
    return f"{names[0]} .. {names[-1]}"
