# SPDX-License-Identifier: Apache-2.0
"""Loads an MTPHead: from a folder of its own, or from the checkpoint of the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models.config import ModelConfig
from fdspec.models.family import Family
from fdspec.models.files import find_checkpoint
from fdspec.models.head_config import head_config, head_facts, head_rotary
from fdspec.models.mtp_names import ERNIE, MTPNames, find_layout
from fdspec.models.registry import family_of_architecture

if TYPE_CHECKING:
    from fdspec.models.checkpoint import Checkpoint
    from fdspec.models.decoder import LlamaFamilyModel
    from fdspec.models.mtp import MTPHead

MODEL_TYPE = "fdspec_mtp"
_TOKEN_IDS = "draft_token_ids"


def load_mtp_folder(folder: Path, target: LlamaFamilyModel, quantization: str | None) -> MTPHead:
    """A head that has a folder of its own, as `train_draft` writes it.

    Args:
        folder: with config.json and model.safetensors.
        target: the model that it was trained for.
        quantization: format of its matrices; None as stored.

    Raises:
        CheckpointError: files are missing or damaged.
        ConfigError: it is no such head, or belongs to a model of another size.
    """
    from fdspec.models.checkpoint import SafetensorsCheckpoint

    kind = head_facts(folder).get("model_type")
    if kind != MODEL_TYPE:
        raise ConfigError(
            f"speculative_config.model: {folder}: model_type is {kind!r}, a head for method mtp "
            f"has {MODEL_TYPE!r}; a whole model drafts by method: draft_model"
        )
    config = head_config(folder, target.config)
    checkpoint = SafetensorsCheckpoint(find_checkpoint(folder).safetensors)
    return _build(
        _Source(checkpoint, ERNIE, config, is_whole=True),
        target,
        quantization,
        _draft_token_ids(folder, checkpoint, target.config.vocab_size),
    )


def load_own_mtp(path: Path, target: LlamaFamilyModel, quantization: str | None) -> MTPHead:
    """The layer that the target's own checkpoint brings along.

    Args:
        path: of the target.
        target: the model.
        quantization: format of the layer's matrices; None as stored.

    Raises:
        ConfigError: it brings none.
        CheckpointError: a tensor is missing or of another shape.
    """
    from fdspec.models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path, target.config)
    layout = find_layout(checkpoint.names(), target.config.num_layers)
    if layout is None:
        raise ConfigError(
            f"speculative_config.method: mtp: {path} has no layer that predicts further tokens; "
            "set speculative_config.model to the folder of a trained head (train_draft makes one)"
        )
    config = replace(target.config, experts=None)
    family = family_of_architecture(config.architecture, config.source)
    source = _Source(checkpoint, layout, config, interleaved_rope=family.interleaved_rope)
    return _build(source, target, quantization, None)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a head's weights are.

    Attributes:
        checkpoint: holds them.
        names: of them.
        config: sizes of its decoder layer.
        interleaved_rope: see Family.
        is_whole: the checkpoint holds nothing else.
    """

    checkpoint: Checkpoint
    names: MTPNames
    config: ModelConfig
    interleaved_rope: bool = False
    is_whole: bool = False


def _build(
    source: _Source,
    target: LlamaFamilyModel,
    quantization: str | None,
    draft_token_ids: NDArray[np.int32] | None,
) -> MTPHead:
    from fdspec.layers.linear import Linear
    from fdspec.layers.norm import RMSNorm
    from fdspec.models.building import build_layer
    from fdspec.models.checkpoint.column_halves import FIRST, SECOND, ColumnHalves
    from fdspec.models.head_output import output_rows
    from fdspec.models.mtp import MTPHead
    from fdspec.models.weights import Role, WeightLoader

    names, config = source.names, source.config
    checkpoint = ColumnHalves(source.checkpoint, [names.projection])
    weights = WeightLoader(checkpoint, quantization)
    size = config.hidden_size

    def norm(name: str) -> RMSNorm:
        return RMSNorm(weights.vector(f"{name}.weight", size), config.rms_norm_eps)

    def projection(half: str) -> Linear:
        name = f"{names.projection}{half}.weight"
        return Linear(weights.matrix(name, (size, size), Role.PROJECTION))

    halves = (SECOND, FIRST) if names.hidden_first else (FIRST, SECOND)
    family = Family(
        "mtp", (), None, interleaved_rope=source.interleaved_rope, names=names.layer_names
    )
    head = MTPHead(
        target,
        embedding_norm=norm(names.embedding_norm),
        hidden_norm=norm(names.hidden_norm),
        projections=(projection(halves[0]), projection(halves[1])),
        block=build_layer(
            config, family, checkpoint, weights=weights, rotary=head_rotary(config, target)
        ),
        final_norm=norm(names.final_norm) if names.final_norm else None,
        output=None if draft_token_ids is None else output_rows(target.output, draft_token_ids),
        draft_token_ids=draft_token_ids,
        carries_normalized=names.carries_normalized,
    )
    if source.is_whole:
        weights.finish([_TOKEN_IDS])
    return head


def _draft_token_ids(
    folder: Path, checkpoint: Checkpoint, vocab_size: int
) -> NDArray[np.int32] | None:
    from safetensors import safe_open

    if _TOKEN_IDS not in checkpoint.names():
        return None
    file = folder / "model.safetensors"
    with safe_open(file, "numpy") as tensors:
        ids = np.asarray(tensors.get_tensor(_TOKEN_IDS))
    if ids.ndim != 1 or ids.dtype != np.int32 or not len(ids):
        raise CheckpointError(f"{file}: {_TOKEN_IDS} must be a list of int32, not {ids.dtype}")
    if ids[0] < 0 or ids[-1] >= vocab_size or (np.diff(ids) <= 0).any():
        raise CheckpointError(f"{file}: {_TOKEN_IDS} must ascend within 0 .. {vocab_size - 1}")
    return ids
