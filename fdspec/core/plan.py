# SPDX-License-Identifier: Apache-2.0
"""The values of one engine step: plan, model output, verdicts. Frozen; each stage makes its own.

What every step makes for every sequence is a named tuple: those are made fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core.command import FinishReason, TokenLogprob
from fdspec.core.draft import Draft
from fdspec.core.handoff import Departure, KVLoad
from fdspec.core.request import SequenceId
from fdspec.core.sampling_params import SamplingParams


class SequencePlan(NamedTuple):
    """One sequence's share of a step.

    Rows of the step, in this order: history[start:], then the draft's tokens. The KV of row i goes
    to cache slot start + i. A row's position is its slot for committed tokens and chains; in a tree
    it is the last committed position + depth.

    Attributes:
        sequence_id: whose rows these are.
        start: tokens already in the cache.
        history: [start + committed rows] int32, tokens up to the last committed row; read only.
        num_prompt: how many tokens of the sequence are prompt.
        draft: tokens to verify after the last committed row, or None.
        block_ids: blocks for slots 0 .. start + num_rows - 1.
        params: how to sample.
        samples: True if the last committed row is the newest token, so that a next token is chosen;
            False for a chunk in the middle of a prompt.
        next_token: the known token that follows the last committed row; None where `samples`.
        cache_salt: what is learned from the sequence is used for others of the same one only.
    """

    sequence_id: SequenceId
    start: int
    history: NDArray[np.int32]
    num_prompt: int
    draft: Draft | None
    block_ids: tuple[int, ...]
    params: SamplingParams
    samples: bool
    next_token: int | None = None
    cache_salt: str = ""

    @property
    def num_committed_rows(self) -> int:
        """Rows that are known tokens."""
        return len(self.history) - self.start

    @property
    def num_draft_rows(self) -> int:
        """Rows that are draft tokens."""
        return 0 if self.draft is None else len(self.draft)

    @property
    def num_rows(self) -> int:
        """All rows of this sequence in the step."""
        num_draft_rows = 0 if self.draft is None else len(self.draft)
        return len(self.history) - self.start + num_draft_rows

    @property
    def num_output(self) -> int:
        """Output tokens committed before this step's sample (0 while in the prompt)."""
        return max(len(self.history) - self.num_prompt, 0)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True if rows of the prompt need logits."""
        return self.params.prompt_logprobs is not None and self.start < self.num_prompt

    @property
    def wants_best_tokens_only(self) -> bool:
        """True if of each row that is sampled only the token with the largest logit matters."""
        params = self.params
        return (
            params.is_greedy
            and params.logprobs is None
            and params.min_tokens == 0
            and not (params.has_penalties or params.logit_bias or params.bad_words_token_ids)
            and not self.wants_prompt_logprobs
        )

    @property
    def first_logit_row(self) -> int:
        """First of this sequence's rows that needs logits; num_rows if none does."""
        if self.wants_prompt_logprobs:
            return 0
        return self.num_committed_rows - 1 if self.samples else self.num_rows


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """What one step computes; decided by the scheduler alone.

    Attributes:
        step: counter of steps.
        sequences: each sequence at most once.
        copies: (source, destination) blocks, copied whole one after another before any row is
            computed: starts of blocks that a new sequence has in common with a cached one.
        swap_outs: (block, slot of the swap space), copied before `copies`.
        swap_ins: (slot of the swap space, block), copied after `copies`.
        loads: keys and values to fetch from other processes; no part of the computation.
        departing: sequences that are offered to other processes while their prompts are computed.
    """

    step: int
    sequences: tuple[SequencePlan, ...]
    copies: tuple[tuple[int, int], ...] = ()
    swap_outs: tuple[tuple[int, int], ...] = ()
    swap_ins: tuple[tuple[int, int], ...] = ()
    loads: tuple[KVLoad, ...] = ()
    departing: tuple[Departure, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the whole step."""
        return sum(sequence.num_rows for sequence in self.sequences)


@dataclass(frozen=True, slots=True, eq=False)
class ModelOutput:
    """What the model says about the rows that need logits.

    Attributes:
        logits: [logit rows, vocab] float32, raw; in plan order, each sequence's rows from its
            first_logit_row on. Valid until the next execute. Empty if best_tokens is there.
        row_splits: [sequences + 1] int64; sequence i owns rows row_splits[i] .. row_splits[i + 1].
        best_tokens: [logit rows] int32, the lowest token with the largest logit of each row, where
            NaN counts as -inf. A runner may give them instead of logits in a step in which every
            sequence that has logit rows `wants_best_tokens_only`.
        block_maxima: [logit rows, blocks] float32, what ops.sample_rows likes to know of the
            logits, or None; as long as valid as these.
    """

    logits: NDArray[np.float32]
    row_splits: NDArray[np.int64]
    best_tokens: NDArray[np.int32] | None = None
    block_maxima: NDArray[np.float32] | None = None


class Verdict(NamedTuple):
    """The outcome for one sequence that samples, after the stop walk. Final.

    Attributes:
        sequence_id: whose.
        tokens: new output tokens: accepted drafts, then the recovered or bonus token, cut at the
            first stop.
        kept: indices into the draft of the accepted tokens that were kept, in path order.
        num_drafted: draft tokens that were verified, but for probes that were not accepted.
        logprobs: one for each token if requested.
        prompt_logprobs: for the prompt rows of this step if requested; entry i belongs to the token
            at position start + 1 + i.
        finish: set if the sequence ends here.
        stop_reason: stop string or token id that ended it.
    """

    sequence_id: SequenceId
    tokens: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    num_drafted: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
