# SPDX-License-Identifier: Apache-2.0
"""Makes the layers of a LlamaFamilyModel from a checkpoint's tensors.

Owns which tensor goes where; loading.py calls it. Everything family-specific comes from Family.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.layers.attention import Attention
from fdspec.layers.embedding import Embedding
from fdspec.layers.linear import Linear
from fdspec.layers.mlp import SwiGLU
from fdspec.layers.moe import MixtureOfExperts, Routing
from fdspec.layers.norm import RMSNorm
from fdspec.layers.rotary import Rotary
from fdspec.models.checkpoint import Checkpoint, GGUFCheckpoint
from fdspec.models.config import ModelConfig
from fdspec.models.decoder import DecoderLayer, FeedForward, LlamaFamilyModel
from fdspec.models.experts import ExpertsConfig
from fdspec.models.family import Family
from fdspec.models.kept_weights import WeightSource
from fdspec.models.rope import rope_frequencies
from fdspec.models.weights import Role

GGUF_ROPE_FACTORS = "rope_freqs.weight"
# Tables of old exporters, which are computed here, and statistics of training.
_IGNORED = (".rotary_emb.inv_freq", ".moe_statics.expert_usage")


def build_model(
    config: ModelConfig,
    family: Family,
    checkpoint: Checkpoint,
    *,
    weights: WeightSource,
    max_model_len: int,
) -> LlamaFamilyModel:
    """The model with the checkpoint's weights; raises as `load_model` does."""
    return _Builder(config, family, checkpoint, weights).model(max_model_len)


def build_layer(
    config: ModelConfig,
    family: Family,
    checkpoint: Checkpoint,
    *,
    weights: WeightSource,
    rotary: Rotary,
) -> DecoderLayer:
    """Layer 0 by itself; raises as `load_model` does."""
    return _Builder(config, family, checkpoint, weights).layer(0, rotary)


def build_attention(
    config: ModelConfig,
    family: Family,
    checkpoint: Checkpoint,
    *,
    weights: WeightSource,
    rotary: Rotary,
) -> Attention:
    """The attention of layer 0 by itself; raises as `load_model` does."""
    return _Builder(config, family, checkpoint, weights).attention(0, rotary)


def build_feed_forward(
    config: ModelConfig, family: Family, checkpoint: Checkpoint, *, weights: WeightSource
) -> FeedForward:
    """The MLP of layer 0 by itself; raises as `load_model` does."""
    return _Builder(config, family, checkpoint, weights).feed_forward(0)


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        family: Family,
        checkpoint: Checkpoint,
        weights: WeightSource,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        is_gguf = isinstance(checkpoint, GGUFCheckpoint)
        self._names = family.gguf_names if is_gguf else family.names
        self._expert_names = family.expert_names
        self._ignored = family.ignored
        self._interleaved = family.gguf_interleaved_rope if is_gguf else family.interleaved_rope
        self._weights = weights

    def model(self, max_model_len: int) -> LlamaFamilyModel:
        config, names, weights = self._config, self._names, self._weights
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = weights.matrix(f"{names.embedding}.weight", vocabulary, Role.VOCABULARY)
        output_name = f"{names.output}.weight"
        output = embedding
        ignored = [
            *_IGNORED,
            *(name for name in self._checkpoint.names() if name.startswith(self._ignored)),
        ]
        if config.tie_word_embeddings:
            # Some exporters write the tied matrix twice.
            ignored.append(output_name)
        else:
            output = weights.matrix(output_name, vocabulary, Role.VOCABULARY)
        rotary = self._rotary(max_model_len)
        model = LlamaFamilyModel(
            config,
            max_model_len,
            embedding=Embedding(embedding),
            layers=[self.layer(index, rotary) for index in range(config.num_layers)],
            norm=self._norm(names.final_norm),
            output=Linear(output, self._output_bias()),
        )
        weights.finish(ignored)
        return model

    def _output_bias(self) -> NDArray[np.float32] | None:
        """No configuration says whether there is one."""
        name = f"{self._names.output}.bias"
        if name not in self._checkpoint.names():
            return None
        return self._weights.vector(name, self._config.vocab_size)

    def _rotary(self, max_model_len: int) -> Rotary:
        frequencies, scale = rope_frequencies(self._config, max_model_len)
        if GGUF_ROPE_FACTORS in self._checkpoint.names():
            # How GGUF files state llama3 scaling.
            frequencies = frequencies / self._weights.vector(GGUF_ROPE_FACTORS, len(frequencies))
        return Rotary(frequencies, scale, max_model_len)

    def layer(self, index: int, rotary: Rotary) -> DecoderLayer:
        names = self._names
        return DecoderLayer(
            self._norm(names.input_norm.format(layer=index)),
            self.attention(index, rotary),
            self._norm(names.post_attention_norm.format(layer=index)),
            self.feed_forward(index),
        )

    def attention(self, index: int, rotary: Rotary) -> Attention:
        config, names = self._config, self._names
        sizes = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        )
        parts = [name.format(layer=index) for name in (names.query, names.key, names.value)]
        orders = [*map(self._row_order, sizes[:2]), None]
        weight = self._weights.fused(
            [f"{part}.weight" for part in parts],
            [(size, config.hidden_size) for size in sizes],
            orders,
        )
        bias = None
        if config.qkv_bias:
            bias = np.concatenate(
                [
                    self._weights.vector(f"{part}.bias", size, order)
                    for part, size, order in zip(parts, sizes, orders, strict=True)
                ]
            )
        return Attention(
            Linear(weight, bias),
            self._linear(
                names.attention_output.format(layer=index),
                (config.hidden_size, sizes[0]),
                has_bias=config.output_bias,
            ),
            rotary,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            query_norm=self._head_norm(names.query_norm.format(layer=index)),
            key_norm=self._head_norm(names.key_norm.format(layer=index)),
        )

    def feed_forward(self, index: int) -> FeedForward:
        config, names = self._config, self._names
        if config.experts is not None and index in config.experts.layers:
            return self._mixture(index, config.experts)
        parts = [name.format(layer=index) for name in (names.gate, names.up, names.down)]
        return self._mlp(parts, config.intermediate_size)

    def _mlp(self, parts: Sequence[str], width: int) -> SwiGLU:
        """A gated MLP; parts: names of gate, up and down."""
        config = self._config
        *wide_parts, down = parts
        wide = (width, config.hidden_size)
        weight = self._weights.fused(
            [f"{part}.weight" for part in wide_parts], [wide, wide], [None, None]
        )
        bias = None
        if config.mlp_bias:
            biases = [self._weights.vector(f"{part}.bias", width) for part in wide_parts]
            bias = np.concatenate(biases)
        return SwiGLU(
            Linear(weight, bias),
            self._linear(down, (config.hidden_size, width), has_bias=config.mlp_bias),
        )

    def _mixture(self, index: int, experts: ExpertsConfig) -> MixtureOfExperts:
        names, weights, hidden = self._expert_names, self._weights, self._config.hidden_size
        router = weights.matrix(
            f"{names.router.format(layer=index)}.weight",
            (experts.num_experts, hidden),
            Role.ROUTER,
        )
        bias = None
        if experts.has_bias:
            size = experts.num_experts
            name = names.router_bias.format(layer=index)
            bias = weights.vector(name, size, stored_shape=(1, size))
        numbers = range(experts.num_experts)
        wide, narrow = (experts.intermediate_size, hidden), (hidden, experts.intermediate_size)
        gate_up = [
            f"{part.format(layer=index, expert=expert)}.weight"
            for expert in numbers
            for part in (names.gate, names.up)
        ]
        down = [f"{names.down.format(layer=index, expert=expert)}.weight" for expert in numbers]
        shared = None
        if experts.num_shared:
            parts = (names.shared_gate, names.shared_up, names.shared_down)
            shared = self._mlp(
                [part.format(layer=index) for part in parts],
                experts.num_shared * experts.intermediate_size,
            )
        return MixtureOfExperts(
            Linear(router),
            Routing(bias, experts.num_chosen, experts.normalize, experts.smallest_sum),
            weights.stacked(gate_up, [wide] * len(gate_up)),
            weights.stacked(down, [narrow] * len(down)),
            shared,
        )

    def _linear(self, name: str, shape: tuple[int, int], *, has_bias: bool) -> Linear:
        weight = self._weights.matrix(f"{name}.weight", shape, Role.PROJECTION)
        return Linear(weight, self._weights.vector(f"{name}.bias", shape[0]) if has_bias else None)

    def _norm(self, name: str) -> RMSNorm:
        weight = self._weights.vector(f"{name}.weight", self._config.hidden_size)
        return RMSNorm(weight, self._config.rms_norm_eps)

    def _head_norm(self, name: str) -> RMSNorm | None:
        if not self._config.qk_norm:
            return None
        weight = self._weights.vector(f"{name}.weight", self._config.head_dim)
        return RMSNorm(weight, self._config.rms_norm_eps)

    def _row_order(self, size: int) -> NDArray[np.int64] | None:
        """Rows of query or key in the order for rotating halves, None if they already are.

        The file holds dimension i and i + head_dim / 2 of a head as neighbours.
        """
        if not self._interleaved:
            return None
        pairs = np.arange(size).reshape(-1, self._config.head_dim // 2, 2)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
