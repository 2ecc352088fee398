# SPDX-License-Identifier: Apache-2.0
"""Drives a ModelRunner by hand: sequences with blocks of their own, in any mix of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fdspec.core.draft import Draft
from fdspec.core.plan import SequencePlan, StepPlan
from fdspec.core.sampling_params import SamplingParams
from fdspec.models import ModelOptions, load_model
from fdspec.worker.model_runner import ModelRunner

BLOCK_SIZE = 16
NUM_BLOCKS = 96


def make_runner(
    path,
    quantization: str | None = "none",
    dtype: str = "float32",
    *,
    use_step_program: bool = True,
) -> ModelRunner:
    """A runner over a fresh model; 512 positions are enough for every test."""
    model = load_model(path, ModelOptions(quantization=quantization, max_model_len=512))
    return ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        kv_cache_dtype=dtype,
        use_step_program=use_step_program,
    )


def blocks_of(index: int, num_tokens: int) -> tuple[int, ...]:
    """Blocks of the index-th of up to 4 sequences, out of order on purpose."""
    count = -(-num_tokens // BLOCK_SIZE)
    per_sequence = NUM_BLOCKS // 4
    assert count <= per_sequence
    first = index * per_sequence
    return tuple(first + (7 * block) % per_sequence for block in range(count))


def share(
    index: int,
    tokens: Sequence[int],
    start: int,
    end: int,
    *,
    draft: Draft | None = None,
) -> SequencePlan:
    """Rows start..end of a sequence, with logits for all of them, and a draft after them."""
    rows = end + (0 if draft is None else len(draft))
    return SequencePlan(
        sequence_id=(str(index), 0),
        start=start,
        history=np.asarray(tokens[:end], dtype=np.int32),
        num_prompt=len(tokens) + 1,
        draft=draft,
        block_ids=blocks_of(index, rows),
        params=SamplingParams(prompt_logprobs=0),
        samples=True,
    )


def execute(runner: ModelRunner, *shares: SequencePlan) -> list[np.ndarray]:
    """Logits of each sequence's rows, copied."""
    output = runner.execute(StepPlan(0, tuple(shares)))
    splits = output.row_splits.tolist()
    return [
        np.array(output.logits[first:last])
        for first, last in zip(splits[:-1], splits[1:], strict=True)
    ]


def greedy(runner: ModelRunner, prompt: list[int], num_tokens: int) -> list[int]:
    """The most likely continuation, EOS ignored."""
    tokens = list(prompt)
    start = 0
    while len(tokens) < len(prompt) + num_tokens:
        (logits,) = execute(runner, share(0, tokens, start, len(tokens)))
        start = len(tokens)
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :]
