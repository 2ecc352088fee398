# SPDX-License-Identifier: Apache-2.0
"""Loads EAGLE heads from the folders in which they are published, as safetensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models.config import ModelConfig
from fdspec.models.family import HUGGING_FACE_NAMES, Family, TensorNames
from fdspec.models.files import find_checkpoint
from fdspec.models.head_config import head_config, head_facts, head_rotary

if TYPE_CHECKING:
    from fdspec.layers.norm import RMSNorm
    from fdspec.models.checkpoint import Checkpoint, SafetensorsCheckpoint
    from fdspec.models.decoder import LlamaFamilyModel
    from fdspec.models.eagle import Eagle3Head, EagleHead, EagleLayer
    from fdspec.models.weights import WeightLoader

_LAYER, _LAYER3 = "layers.0", "midlayer"
_QKV = ("q_proj", "k_proj", "v_proj")
_PREFIX = "model.layers.{layer}"
# Copies of the target's embedding, and EAGLE-3's map in the other direction.
_IGNORED = ("embed_tokens.weight", "t2d", "d2t", "lm_head.weight")


def load_eagle(folder: Path, target: LlamaFamilyModel, quantization: str | None) -> EagleHead:
    """An EAGLE-1 or EAGLE-2 head.

    Args:
        folder: with config.json and model.safetensors: fc, layers.0.
        target: the model that it was trained for.
        quantization: format of its matrices; None as stored.

    Raises:
        CheckpointError: files are missing or damaged.
        ConfigError: it belongs to a model of another size.
    """
    from fdspec.layers.joined_linear import JoinedLinear
    from fdspec.layers.linear import Linear
    from fdspec.models.checkpoint.column_halves import FIRST, SECOND, ColumnHalves
    from fdspec.models.eagle import EagleHead
    from fdspec.models.weights import Role, WeightLoader

    files, config = _open(folder, target)
    checkpoint = ColumnHalves(files, ["fc"])
    weights = WeightLoader(checkpoint, quantization)
    shape = (config.hidden_size, config.hidden_size)
    bias = None
    if "fc.bias" in files.names():
        bias = weights.vector("fc.bias", config.hidden_size)
    fc = JoinedLinear(
        Linear(weights.matrix(f"fc{FIRST}.weight", shape, Role.PROJECTION), bias),
        Linear(weights.matrix(f"fc{SECOND}.weight", shape, Role.PROJECTION)),
    )
    parts = _Parts(config, checkpoint, weights, target)
    head = EagleHead(target, fc, parts.layer(_LAYER, "", ""))
    weights.finish(_IGNORED)
    return head


def load_eagle3(folder: Path, target: LlamaFamilyModel, quantization: str | None) -> Eagle3Head:
    """An EAGLE-3 head: fc, midlayer, norm, lm_head and d2t; raises as `load_eagle` does."""
    from fdspec.layers.linear import Linear
    from fdspec.models.checkpoint.column_halves import FIRST, SECOND, ColumnHalves
    from fdspec.models.eagle import Eagle3Head
    from fdspec.models.weights import Role, WeightLoader

    files, config = _open(folder, target)
    checkpoint = ColumnHalves(files, [f"{_LAYER3}.self_attn.{name}" for name in _QKV])
    weights = WeightLoader(checkpoint, quantization)
    facts = head_facts(folder)
    taps = _taps(folder, facts, target.config.num_layers)
    size = config.hidden_size
    num_drafted = facts.get("draft_vocab_size") or config.vocab_size
    parts = _Parts(config, checkpoint, weights, target)
    head = Eagle3Head(
        target,
        taps=taps,
        fc=Linear(weights.matrix("fc.weight", (size, len(taps) * size), Role.PROJECTION)),
        norms=(parts.norm(f"{_LAYER3}.input_layernorm"), parts.norm(f"{_LAYER3}.hidden_norm")),
        layer=parts.layer(_LAYER3, FIRST, SECOND),
        final_norm=parts.norm("norm"),
        output=Linear(weights.matrix("lm_head.weight", (num_drafted, size), Role.VOCABULARY)),
        draft_token_ids=_drafted_ids(folder, files, num_drafted, config.vocab_size),
    )
    weights.finish(_IGNORED)
    return head


@dataclass(frozen=True, slots=True)
class _Parts:
    """Makes the layers of a head."""

    config: ModelConfig
    checkpoint: Checkpoint
    weights: WeightLoader
    target: LlamaFamilyModel

    def norm(self, name: str) -> RMSNorm:
        from fdspec.layers.norm import RMSNorm

        weight = self.weights.vector(f"{name}.weight", self.config.hidden_size)
        return RMSNorm(weight, self.config.rms_norm_eps)

    def layer(self, prefix: str, *halves: str) -> EagleLayer:
        """The decoder layer; with halves of query, key and value for two inputs."""
        from fdspec.layers.attention import Attention
        from fdspec.layers.joined_linear import JoinedLinear
        from fdspec.models.building import build_attention, build_feed_forward
        from fdspec.models.eagle import EagleLayer

        config, rotary = self.config, head_rotary(self.config, self.target)
        families = [Family("eagle", (), None, names=_names(prefix, half)) for half in halves]
        attentions = [
            build_attention(config, family, self.checkpoint, weights=self.weights, rotary=rotary)
            for family in (families if halves[0] else families[:1])
        ]
        attention = attentions[0]
        if len(attentions) == 2:
            attention = Attention(
                JoinedLinear(attentions[0].qkv, attentions[1].qkv),
                attention.output,
                rotary,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
            )
        return EagleLayer(
            attention,
            self.norm(f"{prefix}.post_attention_layernorm"),
            build_feed_forward(config, families[0], self.checkpoint, weights=self.weights),
        )


def _names(prefix: str, half: str) -> TensorNames:
    """Of the decoder layer, with this half of query, key and value."""
    names = {
        field: getattr(HUGGING_FACE_NAMES, field).replace(_PREFIX, prefix)
        for field in HUGGING_FACE_NAMES.__dataclass_fields__
    }
    for field in ("query", "key", "value"):
        names[field] += half
    return TensorNames(**names)


def _open(folder: Path, target: LlamaFamilyModel) -> tuple[SafetensorsCheckpoint, ModelConfig]:
    from fdspec.models.checkpoint import SafetensorsCheckpoint

    config = head_config(folder, target.config)
    return SafetensorsCheckpoint(find_checkpoint(folder).safetensors), config


def _taps(folder: Path, facts: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """Behind which layers the target's states are read; the published heads' choice if unsaid."""
    stated = facts.get("eagle_aux_hidden_state_layer_ids") or (facts.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    taps = tuple(stated or (2, num_layers // 2, num_layers - 3))
    if not all(isinstance(tap, int) and 1 <= tap <= num_layers for tap in taps):
        raise ConfigError(
            f"speculative_config.model: {folder}: reads states behind layers {list(taps)}, the "
            f"served model has layers 1 .. {num_layers}"
        )
    return taps


def _drafted_ids(
    folder: Path, files: SafetensorsCheckpoint, num_drafted: int, vocab_size: int
) -> NDArray[np.int32] | None:
    """d2t holds the differences between the target's ids and the head's."""
    from safetensors import safe_open

    if "d2t" not in files.names():
        return None
    path = files.file_of("d2t")
    with safe_open(path, "numpy") as tensors:
        differences = np.asarray(tensors.get_tensor("d2t"))
    if differences.shape != (num_drafted,):
        raise CheckpointError(f"{path}: d2t has shape {differences.shape}, not ({num_drafted},)")
    ids = np.arange(num_drafted) + differences
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise CheckpointError(f"{path}: d2t leads outside the vocabulary, 0 .. {vocab_size - 1}")
    return ids.astype(np.int32)
