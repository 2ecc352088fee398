# SPDX-License-Identifier: Apache-2.0
"""The folder of a trained head: config.json and model.safetensors, as the mtp method reads them.

Owns names and formats; head.py owns the values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdspec.models.config import ModelConfig
from fdspec.training.target import Floats
from fdspec.utils.bfloat16 import to_bfloat16


def write_draft_folder(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, Floats],
    *,
    num_model_steps: int,
    draft_token_ids: NDArray[np.int32] | None = None,
) -> None:
    """Write the folder; files that are there are replaced, each whole or not at all.

    Args:
        folder: made if it is not there.
        config: of the target.
        weights: by name; stored in bfloat16.
        num_model_steps: drafts that the head was trained to make one after the other.
        draft_token_ids: sorted ids over which it drafts; None for the whole vocabulary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, tuple[str, NDArray[Any]]] = {
        name: ("BF16", to_bfloat16(values)) for name, values in weights.items()
    }
    if draft_token_ids is not None:
        tensors["draft_token_ids"] = ("I32", draft_token_ids.astype(np.int32))
    _replace(folder / "model.safetensors", _safetensors(tensors))
    facts = {
        "model_type": "fdspec_mtp",
        "num_nextn_predict_layers": 1,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "num_model_steps": num_model_steps,
    }
    _replace(folder / "config.json", (json.dumps(facts, indent=2) + "\n").encode())


def _safetensors(tensors: Mapping[str, tuple[str, NDArray[Any]]]) -> bytes:
    """The file format, which the library writes for numpy's own types only: a header in JSON behind
    its length, then the values."""
    header: dict[str, object] = {}
    values = b""
    for name, (dtype, array) in tensors.items():
        end = len(values) + array.nbytes
        offsets = [len(values), end]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        values += np.ascontiguousarray(array).tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + values


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(content)
    unfinished.rename(path)
