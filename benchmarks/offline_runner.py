# SPDX-License-Identifier: Apache-2.0
"""A model runner without an engine: steps of chosen shapes, and logits of a text.

The one place where benchmarks depend on how a step is described to the model.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdspec import ops
from fdspec.core import Draft, SamplingParams, SequencePlan, StepPlan
from fdspec.models import ModelConfig, ModelOptions, load_model
from fdspec.worker.model_runner import ModelRunner

BLOCK_SIZE = 64
_FIRST_TOKEN_ID = 100


class OfflineRunner:
    """One model with a cache of its own.

    Args:
        path: model folder or GGUF file.
        quantization: weight format; None as the checkpoint has it.
        num_slots: tokens that the cache must hold, in all sequences together.
        kv_cache_dtype: "bfloat16", "float32" or "int8".
    """

    def __init__(
        self,
        path: str | Path,
        quantization: str | None,
        num_slots: int,
        kv_cache_dtype: str = "bfloat16",
    ) -> None:
        model = load_model(path, ModelOptions(quantization=quantization))
        self._runner = ModelRunner(
            model,
            num_blocks=-(-num_slots // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            kv_cache_dtype=kv_cache_dtype,
        )
        self.config: ModelConfig = model.config
        self.weight_bytes = model.weight_bytes

    def close(self) -> None:
        """Free the cache."""
        self._runner.close()

    def logits(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of every token of a text, computed in one step.

        Args:
            token_ids: [rows] int32.

        Returns:
            [rows, vocab] float32, valid until the next step.
        """
        blocks = range(-(-len(token_ids) // BLOCK_SIZE))
        sequence = SequencePlan(
            sequence_id=("text", 0),
            start=0,
            history=token_ids,
            num_prompt=len(token_ids),
            draft=None,
            block_ids=tuple(blocks),
            params=SamplingParams(prompt_logprobs=0),
            samples=True,
        )
        return self._runner.execute(StepPlan(0, (sequence,))).logits

    def time_step_s(self, plan: StepPlan) -> float:
        """How long a step takes: the model, and choosing a token for each row, greedily."""
        params = ops.RowParams.greedy(plan.num_rows)
        start_s = time.perf_counter()
        output = self._runner.execute(plan)
        # A greedy step may have chosen already, without writing logits.
        if output.best_tokens is None:
            ops.sample_rows(output.logits, params)
        return time.perf_counter() - start_s


def decode_plan(num_sequences: int, num_drafts: int, context: int) -> StepPlan:
    """A step of decoding sequences, each with its newest token and some draft tokens.

    Args:
        num_sequences: B.
        num_drafts: draft tokens of each.
        context: tokens of each in the cache.
    """
    rows = 1 + num_drafts
    blocks = blocks_of(context, rows)
    ids = np.arange(_FIRST_TOKEN_ID, _FIRST_TOKEN_ID + context + rows, dtype=np.int32)
    sequences = []
    for index in range(num_sequences):
        sequence_id = (f"sequence {index}", 0)
        draft = Draft.chain(sequence_id, ids[context + 1 :], "benchmark") if num_drafts else None
        sequences.append(
            SequencePlan(
                sequence_id=sequence_id,
                start=context,
                history=ids[: context + 1],
                num_prompt=context,
                draft=draft,
                block_ids=tuple(range(index * blocks, (index + 1) * blocks)),
                params=SamplingParams(temperature=0.0),
                samples=True,
            )
        )
    return StepPlan(0, tuple(sequences))


def blocks_of(context: int, rows: int) -> int:
    """Cache blocks that a sequence needs."""
    return -(-(context + rows) // BLOCK_SIZE)
