# SPDX-License-Identifier: Apache-2.0
"""MTPHead: multi-token prediction, one decoder layer over hidden state and next token.

    fused = projection(concat[embedding_norm(embed(x[s])), hidden_norm(h[s - 1])])   at position s
    out   = decoder_layer(fused)                       logits of x[s + 1]: head(final_norm(out))

h is the target's hidden state after its final norm. Embedding, head and, as a rule, the final norm
are the target's. DeepSeek-V3, arXiv 2412.19437, section 2.2; conventions of ERNIE 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.linear import Linear
from fdspec.layers.norm import RMSNorm
from fdspec.models.decoder import DecoderLayer, LlamaFamilyModel
from fdspec.models.draft_head import Floats
from fdspec.ops import StepProgram


class MTPHead(nn.Layer):
    """The head. Implements `draft_head.DraftHead`.

    Args:
        target: the model that it drafts for.
        embedding_norm, hidden_norm: of the inputs.
        projections: of embedding and hidden state, each [hidden, hidden].
        block: the decoder layer.
        final_norm: before the output matrix; None for the target's.
        output: [drafted tokens, hidden]; None for the target's.
        draft_token_ids: [drafted tokens] int32, what the rows of `output` stand for.
        carries_normalized: the next draft reads the output after the final norm.
    """

    def __init__(
        self,
        target: LlamaFamilyModel,
        *,
        embedding_norm: RMSNorm,
        hidden_norm: RMSNorm,
        projections: tuple[Linear, Linear],
        block: DecoderLayer,
        final_norm: RMSNorm | None,
        output: Linear | None,
        draft_token_ids: NDArray[np.int32] | None,
        carries_normalized: bool,
    ) -> None:
        super().__init__()
        own = [embedding_norm, hidden_norm, *projections, block, final_norm, output]
        self.own = nn.LayerList([layer for layer in own if layer is not None])
        # Not as sublayers: they belong to the target.
        self._shared = (target.embedding, final_norm or target.norm, output or target.output)
        self._target_norm = target.norm.forward
        self._inputs = (embedding_norm, hidden_norm, *projections)
        self._block = block
        self._carries_normalized = carries_normalized
        self.taps = (target.config.num_layers,)
        self.hidden_size = target.config.hidden_size
        _, self.num_kv_heads, self.head_dim = block.attention.shape
        self.vocab_size = target.config.vocab_size
        self.max_positions = target.max_model_len
        self.draft_token_ids = draft_token_ids
        self.eval()

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        return sum(b.numel().item() * b.element_size() for b in self.own.buffers())

    def target_state(self, taps: Sequence[Floats]) -> Floats:
        """See DraftHead.target_state."""
        (hidden,) = taps
        state: Floats = self._target_norm(hidden)
        return state

    def own_state(self, outputs: Floats) -> Floats:
        """See DraftHead.own_state."""
        if not self._carries_normalized:
            return outputs
        state: Floats = self._shared[1].forward(outputs)
        return state

    def lower(self, cache: Sequence[Any]) -> StepProgram:
        """See DraftHead.lower."""
        program = StepProgram()
        program.set_first_slot(1)
        embedding, final_norm, output = self._shared
        embedding_norm, hidden_norm, of_embedding, of_hidden = self._inputs
        embedded = embedding_norm.lower(program, embedding.lower(program))
        hidden = hidden_norm.lower(program, program.hidden(self.hidden_size))
        fused = of_hidden.lower(program, hidden, of_embedding.lower(program, embedded))
        selected = program.select(self._block.lower(program, fused, cache))
        output.lower(program, final_norm.lower(program, selected))
        program.finish()
        return program
