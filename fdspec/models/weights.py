# SPDX-License-Identifier: Apache-2.0
"""Takes tensors from a checkpoint and packs them in the format that was asked for.

Owns the rules which format a tensor gets; never knows what a tensor is used for beyond its role.
The decoder's construction calls it. Never imports paddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models.checkpoint import Checkpoint, QuantizedTensor, Tensor
from fdspec.ops import PackedWeight, WeightFormat, concat_weights, pack_weight, quantize_weight
from fdspec.utils.bfloat16 import from_bfloat16

_NAMED_IN_ERRORS = 3
_SIXTEEN_BITS = 16


class Role(Enum):
    """What a matrix is for, as far as its format goes."""

    PROJECTION = "projection"
    VOCABULARY = "vocabulary"
    """Embedding and output projection: 8 bits where projections get 4, because every token's
    probability hangs on them directly."""
    EXPERT = "expert"
    """Routed experts, which may have a format of their own."""
    ROUTER = "router"
    """Chooses experts: always float32."""


class WeightLoader:
    """Tensors of one checkpoint, each read once.

    Formats with `quantization` None: integer types that the kernels know (GGUF Q4_0, Q4_1, Q8_0)
    stay as they are, without loss; other types of less than 16 bits become wint8 in groups of 32,
    and 16 and 32 bit types bfloat16. Otherwise all matrices get the named format, but for the
    vocabulary's (see Role). Codes that fit the named format are taken over without loss.

    Args:
        checkpoint: where the tensors are.
        quantization: None, "none" (float32) or another name of WeightFormat.
        expert_quantization: the same for routed experts.

    Raises:
        ConfigError: a format is not a known name.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        quantization: str | None,
        expert_quantization: str | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._format = None if quantization is None else parse_format(quantization)
        self._expert_format = None
        if expert_quantization is not None:
            self._expert_format = parse_format(expert_quantization)
        self._used: set[str] = set()

    def vector(
        self,
        name: str,
        size: int,
        row_order: NDArray[np.int64] | None = None,
        *,
        stored_shape: tuple[int, ...] | None = None,
    ) -> NDArray[np.float32]:
        """A norm's weight or a bias, [size] float32.

        Args:
            name: the tensor.
            size: its values.
            row_order: how to permute them, or None.
            stored_shape: its shape in the file if that is not (size,).

        Raises:
            CheckpointError: missing, or another shape.
        """
        values = _as_float32(self._read(name, stored_shape or (size,))).reshape(size)
        # A copy, however small: a view would keep the whole file mapped.
        return np.array(values if row_order is None else values[row_order])

    def matrix(self, name: str, shape: tuple[int, int], role: Role) -> PackedWeight:
        """One matrix [out, in], packed.

        Raises:
            CheckpointError: missing, or another shape.
        """
        tensor = self._read(name, shape)
        return self._pack(name, tensor, self._target(role, self._own_format(name, tensor)))

    def fused(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        row_orders: Sequence[NDArray[np.int64] | None],
    ) -> PackedWeight:
        """Projections of the same input as one matrix, one under the other.

        Where the checkpoint holds them in different formats, all get one that keeps each without
        loss (4 and 8 bit codes without minimum: wint8), else bfloat16.

        Args:
            names: tensors.
            shapes: [out, in] of each.
            row_orders: how to permute the rows of each, or None.

        Raises:
            CheckpointError: one is missing, or has another shape.
        """
        tensors = [self._read(name, shape) for name, shape in zip(names, shapes, strict=True)]
        own = [self._own_format(name, tensor) for name, tensor in zip(names, tensors, strict=True)]
        target = self._target(Role.PROJECTION, _common_format(own))
        ordered = [
            tensor if order is None else _take_rows(tensor, order)
            for tensor, order in zip(tensors, row_orders, strict=True)
        ]
        return concat_weights(
            [self._pack(name, tensor, target) for name, tensor in zip(names, ordered, strict=True)]
        )

    def stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> PackedWeight:
        """Matrices of all experts of a layer as one, one under the other.

        All get the format of the first.

        Args:
            names: tensors.
            shapes: [out, in] of each.

        Raises:
            CheckpointError: one is missing, or has another shape.
        """
        packed: list[PackedWeight] = []
        target: WeightFormat | None = None
        for name, shape in zip(names, shapes, strict=True):
            tensor = self._read(name, shape)
            target = target or self._target(Role.EXPERT, self._own_format(name, tensor))
            # Packed one by one: in floats, all of them together are large.
            packed.append(self._pack(name, tensor, target))
        return concat_weights(packed)

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Raise CheckpointError if the checkpoint has tensors that nobody read.

        Args:
            ignored: names, or endings of names, that are known to be superfluous.
        """
        extra = [
            name
            for name in self._checkpoint.names()
            if name not in self._used and not name.endswith(tuple(ignored))
        ]
        if not extra:
            return
        first = extra[0]
        near = get_close_matches(first, self._used, n=1)
        shown = ", ".join(map(repr, extra[:_NAMED_IN_ERRORS]))
        more = f" and {len(extra) - _NAMED_IN_ERRORS} more" if len(extra) > _NAMED_IN_ERRORS else ""
        hint = f"; the nearest that is used is {near[0]!r}" if near else ""
        raise CheckpointError(
            f"{self._checkpoint.file_of(first)}: the model does not use {shown}{more}{hint}"
        )

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._used.add(name)
        return self._checkpoint.get(name, shape)

    def _pack(self, name: str, tensor: Tensor, target: WeightFormat) -> PackedWeight:
        try:
            if isinstance(tensor, QuantizedTensor) and _holds(target, tensor):
                return pack_weight(tensor.codes, tensor.scales, tensor.minima, target)
            return quantize_weight(np.ascontiguousarray(_as_float32(tensor)), target)
        except ValueError as error:
            file = self._checkpoint.file_of(name)
            raise CheckpointError(f"{file}: tensor {name!r} is damaged: {error}") from error

    def _own_format(self, name: str, tensor: Tensor) -> WeightFormat:
        if isinstance(tensor, QuantizedTensor):
            return WeightFormat(
                bits=tensor.bits,
                group_size=tensor.group_size,
                has_minimum=tensor.minima is not None,
                float_activations=False,
            )
        if self._checkpoint.bits_per_weight(name) < _SIXTEEN_BITS:
            return WeightFormat.parse("wint8_g32")
        return WeightFormat.parse("bfloat16")

    def _target(self, role: Role, own: WeightFormat) -> WeightFormat:
        return format_of(role, own, self._format, self._expert_format)


def format_of(
    role: Role, own: WeightFormat, dense: WeightFormat | None, experts: WeightFormat | None
) -> WeightFormat:
    """The format that a matrix gets.

    Args:
        role: what it is for.
        own: what the checkpoint's tensor becomes if nobody asks for a format.
        dense: asked for all matrices but experts; None keeps their own.
        experts: asked for experts.
    """
    if role is Role.ROUTER:
        return WeightFormat(32)
    if role is Role.EXPERT:
        return experts or own
    if dense is None:
        return own
    if role is Role.VOCABULARY and dense.bits < _SIXTEEN_BITS:
        return WeightFormat(
            bits=8,
            group_size=dense.group_size,
            has_minimum=False,
            float_activations=dense.float_activations,
        )
    return dense


def parse_format(quantization: str) -> WeightFormat:
    """A format by name.

    Raises:
        ConfigError: it is not known.
    """
    try:
        return WeightFormat.parse(quantization)
    except ValueError as error:
        raise ConfigError(f"quantization: {error}") from error


def _common_format(formats: Sequence[WeightFormat]) -> WeightFormat:
    if len(set(formats)) == 1:
        return formats[0]
    symmetric = all(entry.bits <= 8 and not entry.has_minimum for entry in formats)
    if symmetric and len({entry.group_size for entry in formats}) == 1:
        return max(formats, key=lambda entry: entry.bits)
    return WeightFormat.parse("bfloat16")


def _holds(target: WeightFormat, tensor: QuantizedTensor) -> bool:
    """True if the format can take the codes as they are."""
    return (
        tensor.bits <= target.bits <= 8
        and target.group_size == tensor.group_size
        and target.has_minimum == (tensor.minima is not None)
    )


def _take_rows(tensor: Tensor, order: NDArray[np.int64]) -> Tensor:
    return tensor.take_rows(order) if isinstance(tensor, QuantizedTensor) else tensor[order]


def _as_float32(tensor: Tensor) -> NDArray[np.float32]:
    if isinstance(tensor, QuantizedTensor):
        return tensor.dequantize()
    if tensor.dtype == np.uint16:
        return from_bfloat16(tensor)
    return tensor.astype(np.float32, copy=False)
