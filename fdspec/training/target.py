# SPDX-License-Identifier: Apache-2.0
"""Target: what a draft head shares with the model that it drafts for.

Owns copies of the model's embedding, final norm, rotary tables and last layer, as plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import ConfigError
from fdspec.layers.linear import Linear
from fdspec.models.config import ModelConfig
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.ops import PackedWeight, dequantize_weight

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Frozen parts of the served model.

    Attributes:
        config: its architecture.
        embedding: [vocab, hidden], values of the packed matrix.
        output: [vocab, hidden]; the same array if the model ties them.
        final_norm: [hidden].
        cos, sin: [positions, head_dim / 2], tables of the rotation.
        last_layer: matrices [out, in] and norms [in] of the last decoder layer, by the names that
            they have behind `model.layers.{layer}.` in a checkpoint.
    """

    config: ModelConfig
    embedding: Floats
    output: Floats
    final_norm: Floats
    cos: Floats
    sin: Floats
    last_layer: Mapping[str, Floats]

    @staticmethod
    def of(model: LlamaFamilyModel) -> Target:
        """The parts of a model.

        Raises:
            ConfigError: its last layer has biases or head norms, which a draft head has not.
        """
        config = model.config
        if config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm:
            raise ConfigError(
                f"{config.source}: draft heads are trained for models without biases and head "
                f"norms in their layers; {config.architecture} has some"
            )
        embedding = _values(model.embedding.packed_weight)
        output = embedding
        if not config.tie_word_embeddings:
            output = _values(model.output.packed_weight)
        layer = model.layers[-1]
        cos, sin = layer.attention.rotary.tables
        head = config.head_dim
        query, key, value = _split(
            layer.attention.qkv,
            [config.num_heads * head, config.num_kv_heads * head, config.num_kv_heads * head],
        )
        gate, up = _split(layer.mlp.gate_up, [config.intermediate_size] * 2)
        return Target(
            config,
            embedding,
            output,
            model.norm.parameters_of_rows[0],
            cos,
            sin,
            {
                "input_layernorm": layer.input_norm.parameters_of_rows[0],
                "self_attn.q_proj": query,
                "self_attn.k_proj": key,
                "self_attn.v_proj": value,
                "self_attn.o_proj": _values(layer.attention.output.packed_weight),
                "post_attention_layernorm": layer.post_attention_norm.parameters_of_rows[0],
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": _values(layer.mlp.down.packed_weight),
            },
        )


def _values(weight: PackedWeight) -> Floats:
    return np.asarray(dequantize_weight(weight), np.float32)


def _split(linear: Linear, sizes: list[int]) -> list[Floats]:
    return np.split(_values(linear.packed_weight), np.cumsum(sizes)[:-1])
