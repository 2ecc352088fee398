# SPDX-License-Identifier: Apache-2.0
"""Turns a tiny model's folder into what Paddle's own files hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
from safetensors.numpy import load_file, save_file

_FUSIONS = (
    ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    ("up_gate_proj", ("gate_proj", "up_proj")),
)


def paddle_tensors(folder: Path, *, fused: bool, prefix: str = "model.") -> dict[str, np.ndarray]:
    """Tensors by name, matrices but for the embedding as [in, out].

    Args:
        folder: with model.safetensors as transformers writes it.
        fused: with qkv_proj and up_gate_proj in the place of their parts.
        prefix: of the decoder's names.
    """
    tensors = {
        name.replace("model.", prefix, 1): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    for name, values in tensors.items():
        if values.ndim == 2 and name.endswith(".weight") and "embed_tokens" not in name:
            tensors[name] = np.ascontiguousarray(values.T)
    for whole, parts in _FUSIONS if fused else ():
        for name in [name for name in tensors if f".{parts[0]}." in name]:
            pieces = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], whole)] = np.concatenate(pieces, axis=-1)
    return tensors


def write_safetensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """In the place of the folder's weights."""
    save_file(tensors, folder / "model.safetensors")


def write_pdparams(folder: Path, tensors: dict[str, np.ndarray], dtype: str = "float32") -> Path:
    """In the place of the folder's safetensors; by Paddle itself."""
    (folder / "model.safetensors").unlink()
    file = folder / "model_state.pdparams"
    paddle.save(
        {name: paddle.to_tensor(values).astype(dtype) for name, values in tensors.items()},
        str(file),
    )
    return file
