# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as Paddle writes them, under the names and in the shapes of Hugging Face.

Paddle keeps a linear layer's weight as [in, out], calls the decoder `ernie` in ERNIE's files, and
may have fused projections: `qkv_proj` (query, key and value beside each other) and `up_gate_proj`
(the gate first). Owns these differences; model loading puts it around a reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fdspec.models.checkpoint.base import Checkpoint, Tensor, check_shape
from fdspec.models.config import ModelConfig

_DECODER, _ERNIE_DECODER = "model.", "ernie."
_QKV, _GATE_UP = ".qkv_proj.", ".up_gate_proj."
_FUSED = {
    ".q_proj.": _QKV,
    ".k_proj.": _QKV,
    ".v_proj.": _QKV,
    ".gate_proj.": _GATE_UP,
    ".up_proj.": _GATE_UP,
}
_NEVER_TRANSPOSED = "embed_tokens.weight"


class FolderCheckpoint(Checkpoint, Protocol):
    """A reader that tells shapes, which say how matrices are stored."""

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Of a tensor that exists."""
        ...


def with_usual_layout(checkpoint: FolderCheckpoint, config: ModelConfig) -> Checkpoint:
    """The checkpoint with Hugging Face's names, and matrices as [out, in].

    Paddle's layout is known by its names, or by a matrix of the first layer that is not square. A
    checkpoint without either is taken as it is.
    """
    names = set(checkpoint.names())
    is_paddle = any(
        name.startswith(_ERNIE_DECODER) or _QKV in name or _GATE_UP in name for name in names
    )
    first = f"{_DECODER}layers.0."
    heads, kv_heads = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
    for name, shape in (
        (f"{first}mlp.down_proj.weight", (config.hidden_size, config.intermediate_size)),
        (f"{first}self_attn.k_proj.weight", (kv_heads, config.hidden_size)),
        (f"{first}self_attn.q_proj.weight", (heads, config.hidden_size)),
    ):
        if name in names and shape[0] != shape[1]:
            is_paddle = is_paddle or checkpoint.shape_of(name) == shape[::-1]
    return _PaddleLayout(checkpoint, heads + 2 * kv_heads) if is_paddle else checkpoint


class _PaddleLayout:
    def __init__(self, stored: FolderCheckpoint, qkv_size: int) -> None:
        self._stored = stored
        self._qkv_size = qkv_size
        self._stored_names = {_usual(name): name for name in stored.names()}

    def names(self) -> Sequence[str]:
        return [
            part
            for name in self._stored_names
            for part in (
                [name.replace(fused, single) for single, fused in _FUSED.items() if fused in name]
                or [name]
            )
        ]

    def file_of(self, name: str) -> str:
        return self._stored.file_of(self._find(name) or name)

    def bits_per_weight(self, name: str) -> float:
        return self._stored.bits_per_weight(self._find(name) or name)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self._find(name)
        if found is None:
            return self._stored.get(name, shape)
        stored_shape = self._stored.shape_of(found)
        tensor = self._stored.get(found, stored_shape)
        assert isinstance(tensor, np.ndarray)
        is_linear = (
            len(stored_shape) == 2
            and name.endswith(".weight")
            and not name.endswith(_NEVER_TRANSPOSED)
        )
        # A tied output projection is written like the embedding.
        if is_linear and not (name == "lm_head.weight" and stored_shape == shape):
            tensor = tensor.T
        if name not in self._stored_names:
            whole = self._qkv_size if _QKV in found else 2 * shape[0]
            check_shape(found, tensor.shape, (whole, *shape[1:]), self.file_of(name))
            tensor = _part(tensor, name, shape[0])
        check_shape(name, tensor.shape, shape, self.file_of(name))
        return tensor

    def _find(self, name: str) -> str | None:
        """What the file calls a tensor, or the fused one that holds it."""
        if name in self._stored_names:
            return self._stored_names[name]
        for single, fused in _FUSED.items():
            if single in name:
                return self._stored_names.get(name.replace(single, fused))
        return None


def _usual(name: str) -> str:
    return _DECODER + name.removeprefix(_ERNIE_DECODER) if name.startswith(_ERNIE_DECODER) else name


def _part(fused: NDArray[Any], name: str, size: int) -> NDArray[Any]:
    """Rows of one projection in a fused tensor whose rows are outputs."""
    if ".q_proj." in name or ".gate_proj." in name:
        return fused[:size]
    if ".k_proj." in name:
        return fused[len(fused) - 2 * size : len(fused) - size]
    return fused[len(fused) - size :]
