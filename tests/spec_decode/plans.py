# SPDX-License-Identifier: Apache-2.0
"""Short ways to write plans for tests of proposers and the verifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fdspec.core import Draft, ModelOutput, SamplingParams, SequenceId, SequencePlan, StepPlan

KEY: SequenceId = ("r", 0)
GREEDY = SamplingParams(max_tokens=100, temperature=0.0, seed=0)


def decoding(
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    draft: Sequence[int] = (),
    parents: Sequence[int] | None = None,
    params: SamplingParams = GREEDY,
    key: SequenceId = KEY,
) -> SequencePlan:
    """A sequence whose newest token (or whole prompt, without output) is computed now."""
    history = np.array([*prompt, *output], np.int32)
    made = None
    if draft:
        made = Draft.chain(key, list(draft), "test")
        if parents is not None:
            made = Draft(key, made.tokens, np.array(parents, np.int32), "test")
    start = len(history) - 1 if output else 0
    return SequencePlan(key, start, history, len(prompt), made, (), params, samples=True)


def step_of(*sequences: SequencePlan) -> StepPlan:
    return StepPlan(1, sequences)


def output_of(plan: StepPlan, logits: np.ndarray) -> ModelOutput:
    """Logits [all logit rows, vocab] for a plan."""
    counts = [s.num_rows - s.first_logit_row for s in plan.sequences]
    assert sum(counts) == len(logits)
    return ModelOutput(np.asarray(logits, np.float32), np.cumsum([0, *counts]).astype(np.int64))


def peaked(targets: Sequence[int], vocab_size: int) -> np.ndarray:
    """Logits whose argmax in each row is the given token."""
    logits = np.linspace(0.0, 1.0, len(targets) * vocab_size, dtype=np.float32)
    logits = logits.reshape(len(targets), vocab_size) % 0.37
    logits[np.arange(len(targets)), list(targets)] = 5.0
    return logits
