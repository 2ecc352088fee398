# SPDX-License-Identifier: Apache-2.0
"""The decoder-only model of the Llama family, for every Family and ModelConfig.

Owns the order of the layers; weights and caches come from outside. The model runner calls
`forward` and `compute_logits`; loading.py makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.attention import Attention, AttentionMetadata
from fdspec.layers.embedding import Embedding
from fdspec.layers.linear import Linear
from fdspec.layers.mlp import SwiGLU
from fdspec.layers.moe import MixtureOfExperts
from fdspec.layers.norm import RMSNorm
from fdspec.models.config import ModelConfig
from fdspec.ops import StepProgram, Value
from fdspec.utils.bfloat16 import to_bfloat16

FeedForward = SwiGLU | MixtureOfExperts

Taps = Mapping[int, Sequence[NDArray[np.uint16]]]
"""By number of layers: caches [blocks, 1, block_size, hidden] bfloat16 for the rows behind them."""

_NO_TAPS: Taps = MappingProxyType({})


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
        taps: Taps = _NO_TAPS,
    ) -> Any:
        """Hidden states of a step's rows.

        Args:
            token_ids: [rows] int32, inside the vocabulary; numpy or Paddle, like the result.
            positions: [rows] int32, below max_model_len.
            metadata: of the step.
            caches: keys and values for each layer; this step's rows are written into them.
            taps: where to keep the residual stream behind so many layers.

        Returns:
            [rows, hidden] float32 after the final norm.
        """
        embed, norm, _ = self._ends
        with paddle.no_grad():
            hidden = embed(token_ids)
            for index, layer in enumerate(self._layer_forwards):
                hidden = layer(hidden, positions, metadata, caches[index])
                for states in taps.get(index + 1, ()):
                    _keep(hidden, states, metadata.slots)
            return norm(hidden)

    def compute_logits(self, hidden: Any) -> Any:
        """[rows, hidden] float32 from `forward` -> [rows, vocab] float32."""
        return self._ends[2](hidden)

    def lower(self, caches: Sequence[Sequence[Any]], taps: Taps = _NO_TAPS) -> StepProgram:
        """A step program of the whole model: token ids to the logits of selected rows.

        Args:
            caches: keys and values for each layer, which the program will read and write.
            taps: as in `forward`.
        """
        program = StepProgram()
        hidden = self.embedding.lower(program)
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            hidden = layer.lower(program, hidden, cache)
            for states in taps.get(index + 1, ()):
                program.tap(hidden, states)
        selected = self.norm.lower(program, program.select(hidden))
        self.output.lower(program, selected)
        program.finish()
        return program


def _keep(hidden: Any, states: NDArray[np.uint16], slots: NDArray[np.int64]) -> None:
    states.reshape(-1, states.shape[-1])[slots] = to_bfloat16(np.asarray(hidden))
