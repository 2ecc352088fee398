# SPDX-License-Identifier: Apache-2.0
"""SpeculativeVerifier: from logits to final verdicts, for plain and speculative rows alike.

Samples or accepts by the verify strategy, walks over the tokens to the first stop, and adds
logprobs. Never changes a sequence; keeps only token counts, which history could rebuild. Called by
`Engine.step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import ModelOutput, SequenceId, SequencePlan, StepPlan, TokenLogprob, Verdict
from fdspec.spec_decode.draft_tree import depths
from fdspec.spec_decode.logprobs import token_logprobs
from fdspec.spec_decode.row_params import RowParamsBuilder
from fdspec.spec_decode.stop import StopWalk
from fdspec.spec_decode.strategies import ACCEPT_POLICIES, STRATEGIES, Choice


class SpeculativeVerifier:
    """Implements `core.protocols.Verifier`."""

    def __init__(
        self,
        *,
        vocab_size: int,
        eos_ids: Iterable[int],
        token_bytes: Sequence[bytes],
        max_model_len: int,
        verify_strategy: str = "target_match",
        accept_policy: str = "normal",
    ) -> None:
        """Remember the model's facts and the rules.

        Args:
            vocab_size: columns of the logits.
            eos_ids: tokens that end the output, unless a request ignores them.
            token_bytes: [vocab] bytes that each token adds to the text, for stop strings.
            max_model_len: most tokens of a sequence, prompt and output together.
            verify_strategy: `target_match` and `greedy` keep the tokens of plain decoding,
                `rejection` keeps the distribution, `topp` keeps neither. Under `greedy` every
                request decodes with temperature 0.
            accept_policy: `normal`; for debugging `reject_all` refuses right drafts too (the output
                stays the same) and `accept_all` accepts wrong ones too (it does not).
        """
        eos_ids = tuple(eos_ids)
        strategy = STRATEGIES[verify_strategy]
        self._choose = strategy if accept_policy == "normal" else ACCEPT_POLICIES[accept_policy]
        self._rows = RowParamsBuilder(
            eos_ids, vocab_size, always_greedy=verify_strategy == "greedy"
        )
        self._stop = StopWalk(eos_ids, token_bytes, max_model_len)

    def verify(self, plan: StepPlan, output: ModelOutput) -> list[Verdict]:
        """One verdict for each sequence that samples or wants prompt logprobs. Does not modify."""
        splits = output.row_splits.tolist()
        sampling = [sequence for sequence in plan.sequences if sequence.samples]
        choices: dict[SequenceId, Choice] = {}
        if sampling:
            logits = _sampling_rows(plan, output.logits, splits)
            params = self._rows.build(sampling)
            chosen = self._choose(logits, params, sampling)
            choices = {s.sequence_id: c for s, c in zip(sampling, chosen, strict=True)}
        return [
            self._verdict(sequence, output.logits[start:end], choices.get(sequence.sequence_id))
            for sequence, start, end in zip(plan.sequences, splits[:-1], splits[1:], strict=True)
            if end > start
        ]

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop cached token counts of ended sequences."""
        self._rows.forget(sequence_ids)

    def _verdict(
        self, sequence: SequencePlan, logits: NDArray[np.float32], choice: Choice | None
    ) -> Verdict:
        """The outcome for one sequence, whose logits these are."""
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.wants_prompt_logprobs:
            prompt_logprobs = _prompt_logprobs(sequence, logits)
        if choice is None:
            return Verdict(sequence.sequence_id, prompt_logprobs=prompt_logprobs)
        draft = sequence.draft
        tokens = [choice.next_token]
        if draft is not None:
            tokens = [*draft.tokens[choice.accepted].tolist(), choice.next_token]
        trimmed = self._stop.trim(tokens, sequence)
        tokens = tokens[: trimmed.num_tokens]
        # The last token always counts as the target's own: plain decoding would have had it too.
        kept = choice.accepted[: len(tokens) - 1]
        num_drafted = sequence.num_draft_rows
        if draft is not None and len(kept) < len(choice.accepted):
            # Draft tokens behind the stop leave no trace, not even as drafted ones.
            num_drafted = sum(depth <= len(kept) for depth in depths(draft.parents.tolist()))
        logprobs = None
        if sequence.params.logprobs is not None:
            first = len(logits) - 1 - sequence.num_draft_rows
            rows = [first, *(first + 1 + index for index in kept)]
            logprobs = token_logprobs(logits[rows], tokens, sequence.params.logprobs)
        return Verdict(
            sequence.sequence_id,
            tuple(tokens),
            tuple(kept),
            num_drafted,
            logprobs,
            prompt_logprobs,
            trimmed.finish,
            trimmed.stop_reason,
        )


def _sampling_rows(
    plan: StepPlan, logits: NDArray[np.float32], splits: list[int]
) -> NDArray[np.float32]:
    """Logits of the rows that choose a token; without prompt logprobs these are all of them."""
    if not any(sequence.wants_prompt_logprobs for sequence in plan.sequences):
        return logits
    rows = [
        row
        for sequence, end in zip(plan.sequences, splits[1:], strict=True)
        if sequence.samples
        for row in range(end - 1 - sequence.num_draft_rows, end)
    ]
    return logits[rows]


def _prompt_logprobs(
    sequence: SequencePlan, logits: NDArray[np.float32]
) -> tuple[TokenLogprob, ...]:
    """Logprobs of the prompt tokens that follow this step's prompt rows."""
    num_top = sequence.params.prompt_logprobs
    assert num_top is not None
    following = sequence.history[sequence.start + 1 : sequence.num_prompt]
    if sequence.next_token is not None and len(sequence.history) < sequence.num_prompt:
        following = np.append(following, np.int32(sequence.next_token))
    return token_logprobs(logits[: len(following)], following, num_top)
