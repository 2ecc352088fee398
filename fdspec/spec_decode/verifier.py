# SPDX-License-Identifier: Apache-2.0
"""SpeculativeVerifier: from logits to final verdicts, for plain and speculative rows alike.

Samples or accepts by the verify strategy, walks over the tokens to the first stop, and adds
logprobs. Never changes a sequence; keeps only token counts, which history could rebuild. Called by
`Engine.step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import ModelOutput, SequenceId, SequencePlan, StepPlan, TokenLogprob, Verdict
from fdspec.core.draft import depths
from fdspec.ops import sample_rows
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
        self._match = ACCEPT_POLICIES[accept_policy]
        self._strategy = STRATEGIES.get(verify_strategy) if accept_policy == "normal" else None
        self._rows = RowParamsBuilder(
            eos_ids, vocab_size, always_greedy=verify_strategy == "greedy"
        )
        self._stop = StopWalk(eos_ids, token_bytes, max_model_len)

    def verify(self, plan: StepPlan, output: ModelOutput) -> list[Verdict]:
        """One verdict for each sequence that samples or wants prompt logprobs. Does not modify."""
        splits = output.row_splits.tolist()
        sampling = [sequence for sequence in plan.sequences if sequence.samples]
        choices: Iterator[Choice] = iter(())
        if sampling:
            choices = iter(self._choose(plan, output, splits, sampling))
        verdicts = []
        for index, sequence in enumerate(plan.sequences):
            start, end = splits[index], splits[index + 1]
            if sequence.samples:
                verdicts.append(self._verdict(sequence, output.logits, start, end, next(choices)))
            elif end > start:
                verdicts.append(
                    Verdict(
                        sequence.sequence_id,
                        prompt_logprobs=_prompt_logprobs(sequence, output.logits[start:end]),
                    )
                )
        return verdicts

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop cached token counts of ended sequences."""
        self._rows.forget(sequence_ids)

    def _choose(
        self,
        plan: StepPlan,
        output: ModelOutput,
        splits: list[int],
        sampling: list[SequencePlan],
    ) -> list[Choice]:
        if output.best_tokens is not None:
            # At temperature 0 every strategy accepts what equals the target's own token.
            return self._match(output.best_tokens, sampling)
        params = self._rows.build(sampling)
        logits, block_maxima = output.logits, output.block_maxima
        if len(logits) > params.num_rows:
            rows = _sampling_rows(plan, splits)
            logits = logits[rows]
            block_maxima = None if block_maxima is None else block_maxima[rows]
        if self._strategy is not None:
            return self._strategy(logits, params, sampling)
        return self._match(sample_rows(logits, params, block_maxima), sampling)

    def _verdict(
        self,
        sequence: SequencePlan,
        logits: NDArray[np.float32],
        start: int,
        end: int,
        choice: Choice,
    ) -> Verdict:
        """The outcome for one sequence that samples; its logits are rows start .. end."""
        accepted, next_token = choice
        draft = sequence.draft
        tokens, num_drafted = [next_token], 0
        if draft is not None:
            tokens = [*draft.tokens[accepted].tolist(), next_token] if accepted else tokens
            num_drafted = len(draft.counted(accepted) if draft.num_probes else draft.tokens)
        num_tokens, finish, stop_reason = self._stop.trim(tokens, sequence)
        kept = accepted
        if num_tokens < len(tokens):
            tokens = tokens[:num_tokens]
            # The last one counts as the target's own: plain decoding would have had it too.
            kept = accepted[: num_tokens - 1]
            # Draft tokens behind the stop leave no trace, not even as drafted ones.
            assert draft is not None
            levels = depths(draft.parents.tolist())
            num_drafted = sum(levels[index] <= len(kept) for index in draft.counted(kept))
        logprobs = None
        params = sequence.params
        if params.logprobs is not None:
            first = end - 1 - sequence.num_draft_rows
            rows = [first, *(first + 1 + index for index in kept)]
            logprobs = token_logprobs(logits[rows], tokens, params.logprobs)
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if params.prompt_logprobs is not None and sequence.wants_prompt_logprobs:
            prompt_logprobs = _prompt_logprobs(sequence, logits[start:end])
        return Verdict(
            sequence.sequence_id,
            tuple(tokens),
            tuple(kept),
            num_drafted,
            logprobs,
            prompt_logprobs,
            finish,
            stop_reason,
        )


def _sampling_rows(plan: StepPlan, splits: list[int]) -> list[int]:
    """The rows that choose a token, among those that are there for prompt logprobs."""
    return [
        row
        for sequence, end in zip(plan.sequences, splits[1:], strict=True)
        if sequence.samples
        for row in range(end - 1 - sequence.num_draft_rows, end)
    ]


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
