# SPDX-License-Identifier: Apache-2.0
"""EagleHead and Eagle3Head: one decoder layer over hidden states and the next token.

EAGLE (arXiv 2401.15077, and 2406.16858 with the same network) reads the target's state after its
final norm and writes one of the same kind:

    x = fc(concat[embed(x[s]), h[s - 1]]);  out = layer(x), without a norm at its beginning

EAGLE-3 (arXiv 2503.01840) reads three states of the target, and has an output matrix of its own:

    h = fc(concat of the three)      of the target; then its own out
    out = layer over concat[norm(embed(x[s])), norm(h[s - 1])], with h[s - 1] as the residual
    logits of x[s + 1]: lm_head(norm(out))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.attention import Attention
from fdspec.layers.joined_linear import JoinedLinear
from fdspec.layers.linear import Linear
from fdspec.layers.norm import RMSNorm
from fdspec.models.decoder import FeedForward, LlamaFamilyModel
from fdspec.models.draft_head import Floats
from fdspec.ops import StepProgram


class EagleLayer(nn.Layer):
    """What both have in common: attention, norm and MLP.

    Args:
        attention: behind whatever makes its input.
        norm: before the MLP.
        mlp: the MLP.
    """

    def __init__(self, attention: Attention, norm: RMSNorm, mlp: FeedForward) -> None:
        super().__init__()
        self.attention = attention
        self.norm = norm
        self.mlp = mlp


class _Head(nn.Layer):
    """The attributes of DraftHead, for the layers below."""

    def __init__(
        self, target: LlamaFamilyModel, layer: EagleLayer, own: Sequence[nn.Layer]
    ) -> None:
        super().__init__()
        self.own = nn.LayerList([layer, *own])
        self._target = (target,)  # Not a sublayer: it belongs to itself.
        self.taps: tuple[int, ...] = (target.config.num_layers,)
        self.hidden_size = target.config.hidden_size
        _, self.num_kv_heads, self.head_dim = layer.attention.shape
        self.vocab_size = target.config.vocab_size
        self.max_positions = target.max_model_len
        self.draft_token_ids: NDArray[np.int32] | None = None

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        return sum(b.numel().item() * b.element_size() for b in self.own.buffers())

    def own_state(self, outputs: Floats) -> Floats:
        """See DraftHead.own_state: as they are."""
        return outputs


class EagleHead(_Head):
    """EAGLE-1 and EAGLE-2. Implements `draft_head.DraftHead`.

    Args:
        target: the model that it drafts for.
        fc: of embedding and state.
        layer: the decoder layer.
    """

    def __init__(self, target: LlamaFamilyModel, fc: JoinedLinear, layer: EagleLayer) -> None:
        super().__init__(target, layer, [fc])
        self._fc = fc
        self._layer = layer
        self.eval()

    def target_state(self, taps: Sequence[Floats]) -> Floats:
        """See DraftHead.target_state."""
        (hidden,) = taps
        state: Floats = self._target[0].norm.forward(hidden)
        return state

    def lower(self, cache: Sequence[Any]) -> StepProgram:
        """See DraftHead.lower."""
        (target,), layer = self._target, self._layer
        program = StepProgram()
        program.set_first_slot(1)
        embedded = target.embedding.lower(program)
        x = self._fc.lower(program, (embedded, program.hidden(self.hidden_size)))
        x = layer.attention.lower(program, x, x, cache)
        x = layer.mlp.lower(program, layer.norm.lower(program, x), x)
        target.output.lower(program, program.select(x))
        program.finish()
        return program


class Eagle3Head(_Head):
    """EAGLE-3. Implements `draft_head.DraftHead`.

    Args:
        target: the model that it drafts for.
        taps: numbers of layers of the target behind which its states are read.
        fc: [hidden, taps * hidden].
        norms: of embedding and state.
        layer: the decoder layer, whose attention takes both.
        final_norm: before the output matrix.
        output: [drafted tokens, hidden].
        draft_token_ids: [drafted tokens] int32, what its rows stand for.
    """

    def __init__(
        self,
        target: LlamaFamilyModel,
        *,
        taps: tuple[int, ...],
        fc: Linear,
        norms: tuple[RMSNorm, RMSNorm],
        layer: EagleLayer,
        final_norm: RMSNorm,
        output: Linear,
        draft_token_ids: NDArray[np.int32] | None,
    ) -> None:
        super().__init__(target, layer, [fc, *norms, final_norm, output])
        self.taps = taps
        self.draft_token_ids = draft_token_ids
        self._fc = fc
        self._norms = norms
        self._layer = layer
        self._ends = (final_norm, output)
        self.eval()

    def target_state(self, taps: Sequence[Floats]) -> Floats:
        """See DraftHead.target_state."""
        state: Floats = self._fc.forward(np.concatenate(taps, axis=1))
        return state

    def lower(self, cache: Sequence[Any]) -> StepProgram:
        """See DraftHead.lower."""
        (target,), layer = self._target, self._layer
        program = StepProgram()
        program.set_first_slot(1)
        embedding_norm, hidden_norm = self._norms
        embedded = embedding_norm.lower(program, target.embedding.lower(program))
        hidden = program.hidden(self.hidden_size)
        both = embedded, hidden_norm.lower(program, hidden)
        x = layer.attention.lower(program, both, hidden, cache)
        x = layer.mlp.lower(program, layer.norm.lower(program, x), x)
        final_norm, output = self._ends
        output.lower(program, final_norm.lower(program, program.select(x)))
        program.finish()
        return program
