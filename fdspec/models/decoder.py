# SPDX-License-Identifier: Apache-2.0
"""The decoder-only model of the Llama family, for every Family and ModelConfig.

Owns the order of the layers; weights and caches come from outside. The model runner calls
`forward` and `compute_logits`; loading.py makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import nn

from fdspec.layers.attention import Attention, AttentionMetadata
from fdspec.layers.embedding import Embedding
from fdspec.layers.linear import Linear
from fdspec.layers.mlp import SwiGLU
from fdspec.layers.moe import MixtureOfExperts
from fdspec.layers.norm import RMSNorm
from fdspec.models.config import ModelConfig
from fdspec.ops import StepProgram, Value

FeedForward = SwiGLU | MixtureOfExperts


class DecoderLayer(nn.Layer):
    """Attention and MLP (or experts), each behind its norm and around its residual."""

    def __init__(
        self,
        input_norm: RMSNorm,
        attention: Attention,
        post_attention_norm: RMSNorm,
        mlp: FeedForward,
    ) -> None:
        super().__init__()
        self.input_norm = input_norm
        self.attention = attention
        self.post_attention_norm = post_attention_norm
        self.mlp = mlp
        self._steps = (
            input_norm.forward,
            attention.forward,
            post_attention_norm.forward,
            mlp.forward,
        )

    def forward(
        self, hidden: Any, positions: Any, metadata: AttentionMetadata, cache: Sequence[Any]
    ) -> Any:
        """[rows, hidden] float32 -> the same; writes this step's keys and values to the cache."""
        input_norm, attention, post_attention_norm, mlp = self._steps
        hidden = attention(input_norm(hidden), hidden, positions, metadata, cache)
        return mlp(post_attention_norm(hidden), hidden)

    def lower(self, program: StepProgram, hidden: Value, cache: Sequence[Any]) -> Value:
        """Add this layer to a step program."""
        normalized = self.input_norm.lower(program, hidden)
        hidden = self.attention.lower(program, normalized, hidden, cache)
        return self.mlp.lower(program, self.post_attention_norm.lower(program, hidden), hidden)


class LlamaFamilyModel(nn.Layer):
    """A causal language model.

    Args:
        config: its architecture.
        max_model_len: positions that the rotary tables cover.
        embedding, layers, norm, output: its parts; `output` may hold the embedding's weight.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_model_len: int,
        *,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        output: Linear,
    ) -> None:
        super().__init__()
        self.config = config
        self.max_model_len = max_model_len
        self.embedding = embedding
        self.layers = nn.LayerList(layers)
        self.norm = norm
        self.output = output
        self._layer_forwards = [layer.forward for layer in layers]
        self._ends = (embedding.forward, norm.forward, output.forward)
        self.eval()

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights and tables; a tied output projection counts once."""
        sizes = {
            buffer.data_ptr(): buffer.numel().item() * buffer.element_size()
            for buffer in self.buffers()
        }
        return sum(sizes.values())

    def forward(
        self,
        token_ids: Any,
        positions: Any,
        metadata: AttentionMetadata,
        caches: Sequence[Sequence[Any]],
    ) -> Any:
        """Hidden states of a step's rows.

        Args:
            token_ids: [rows] int32, inside the vocabulary; numpy or Paddle, like the result.
            positions: [rows] int32, below max_model_len.
            metadata: of the step.
            caches: keys and values for each layer; this step's rows are written into them.

        Returns:
            [rows, hidden] float32 after the final norm.
        """
        embed, norm, _ = self._ends
        with paddle.no_grad():
            hidden = embed(token_ids)
            for layer, cache in zip(self._layer_forwards, caches, strict=True):
                hidden = layer(hidden, positions, metadata, cache)
            return norm(hidden)

    def compute_logits(self, hidden: Any) -> Any:
        """[rows, hidden] float32 from `forward` -> [rows, vocab] float32."""
        return self._ends[2](hidden)

    def lower(self, caches: Sequence[Sequence[Any]]) -> StepProgram:
        """A step program of the whole model: token ids to the logits of selected rows.

        Args:
            caches: keys and values for each layer, which the program will read and write.
        """
        program = StepProgram()
        hidden = self.embedding.lower(program)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer.lower(program, hidden, cache)
        selected = self.norm.lower(program, program.select(hidden))
        self.output.lower(program, selected)
        program.finish()
        return program
