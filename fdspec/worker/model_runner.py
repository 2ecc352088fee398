# SPDX-License-Identifier: Apache-2.0
"""ModelRunner: a step plan to logits, with the KV cache in between.

Owns the cache's memory and which layout the model needs; never decides what to run (the scheduler
does) or which tokens to keep (the verifier does). `Engine.step` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core.plan import ModelOutput, StepPlan, Verdict
from fdspec.kv.cache import ExtraLayers, KVCache, KVCacheLayout
from fdspec.kv.swap_space import open_swap_space
from fdspec.layers.attention import AttentionMetadata
from fdspec.models.config import ModelConfig
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.ops import compact_kv, num_token_blocks, wake_threads
from fdspec.worker.batch import Batch, Moves, build_batch, plan_moves, run_program


def kv_cache_layout(
    config: ModelConfig, *, block_size: int, dtype: str, extra: Sequence[ExtraLayers] = ()
) -> KVCacheLayout:
    """What a block of a model's KV cache holds; `block_bytes` of it sizes the pool.

    Args:
        config: the model.
        block_size: tokens in a block.
        dtype: "bfloat16", "float32" or "int8".
        extra: what drafting models keep beside it.

    Raises:
        ConfigError: another dtype.
    """
    return KVCacheLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        dtype=dtype,
        extra=tuple(extra),
    )


class ModelRunner:
    """Runs one model in this process; see core.protocols.ModelRunner.

    Args:
        model: as `load_model` gives it.
        num_blocks: blocks of the KV cache.
        block_size: tokens in a block.
        kv_cache_dtype: "bfloat16", "float32" or "int8".
        use_step_program: run a step in one call; False calls the layers one by one, with the same
            results.
        swap_bytes: most memory for the blocks of preempted sequences.
        swap_folder: where a file for it is made; None takes host memory.
        extra: layers of the cache beside the model's, for drafting models; only hidden states are
            written here.

    Attributes:
        swap_space: where swapped blocks are; None if there is none.
    """

    def __init__(
        self,
        model: LlamaFamilyModel,
        *,
        num_blocks: int,
        block_size: int = 64,
        kv_cache_dtype: str = "bfloat16",
        use_step_program: bool = True,
        swap_bytes: int = 0,
        swap_folder: str | None = None,
        extra: Sequence[ExtraLayers] = (),
    ) -> None:
        layout = kv_cache_layout(
            model.config, block_size=block_size, dtype=kv_cache_dtype, extra=extra
        )
        self._model = model
        self._cache = KVCache(layout, num_blocks)
        self.swap_space = open_swap_space(self._cache, swap_bytes, swap_folder)
        self._block_size = block_size
        self._vocab_size = model.config.vocab_size
        self._taps = self._cache.taps()
        self._program = None
        if use_step_program:
            self._program = model.lower(self._cache.layers, self._taps)
        self._logits = np.empty((0, self._vocab_size), dtype=np.float32)
        self._block_maxima = np.empty((0, num_token_blocks(self._vocab_size)), dtype=np.float32)

    @property
    def model(self) -> LlamaFamilyModel:
        """The model that `execute` runs."""
        return self._model

    @property
    def cache(self) -> KVCache:
        """The KV cache that `execute` writes."""
        return self._cache

    @property
    def num_layers_appended(self) -> int:
        """Layers of the running step whose keys and values are in the cache; others may read it.

        After a step, and in a runner without a step program, all of them.
        """
        program = self._program
        num_layers = self._cache.layout.num_layers
        return num_layers if program is None else program.num_layers_appended

    def execute(self, plan: StepPlan) -> ModelOutput:
        """Compute the plan's rows; writes their KV into the cache.

        Returns:
            Logits of the rows that need them, valid until the next call, or their best tokens if
            these are all that is wanted.
        """
        wake_threads()
        self._move_blocks(plan)
        batch = build_batch(plan, block_size=self._block_size, vocab_size=self._vocab_size)
        if not len(batch.token_ids):
            return ModelOutput(self._logits[:0], batch.logit_splits)
        if self._program is None:
            return ModelOutput(self._run_layers(batch), batch.logit_splits)
        if _wants_best_tokens_only(plan):
            best_tokens = np.empty(len(batch.logit_rows), dtype=np.int32)
            run_program(self._program, batch, best_tokens)
            return ModelOutput(self._logits[:0], batch.logit_splits, best_tokens)
        logits, block_maxima = self._outputs(len(batch.logit_rows))
        run_program(self._program, batch, logits, block_maxima)
        return ModelOutput(logits, batch.logit_splits, block_maxima=block_maxima)

    def commit(self, plan: StepPlan, verdicts: Sequence[Verdict]) -> None:
        """Move the KV of accepted tree rows to the slots of their positions."""
        sequences = {sequence.sequence_id: sequence for sequence in plan.sequences}
        moves = [
            planned
            for verdict in verdicts
            if verdict.kept
            and (
                planned := plan_moves(
                    sequences[verdict.sequence_id], verdict.kept, block_size=self._block_size
                )
            )
        ]
        if moves:
            self._move(moves)

    def close(self) -> None:
        """Give the cache's memory back; the runner must not be used any more."""
        self._program = None
        self._taps = {}
        self._cache.close()

    def _move_blocks(self, plan: StepPlan) -> None:
        """In this order: a block may be swapped out, copied over, and swapped in over again."""
        if self.swap_space is None:
            assert not plan.swap_outs and not plan.swap_ins
            self._cache.copy_blocks(plan.copies)
            return
        slots = self.swap_space.slots
        for block_id, slot in plan.swap_outs:
            self._cache.read_block(block_id, slots[slot])
        self._cache.copy_blocks(plan.copies)
        for slot, block_id in plan.swap_ins:
            self._cache.write_block(block_id, slots[slot])

    def _outputs(self, num_rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Memory of the last steps: new one would cost a page fault for every 4 KiB of it."""
        if num_rows > len(self._logits):
            self._logits = np.empty((num_rows, self._vocab_size), dtype=np.float32)
            num_blocks = self._block_maxima.shape[1]
            self._block_maxima = np.empty((num_rows, num_blocks), dtype=np.float32)
        return self._logits[:num_rows], self._block_maxima[:num_rows]

    def _run_layers(self, batch: Batch) -> NDArray[np.float32]:
        metadata = AttentionMetadata(
            slots=batch.slots,
            block_table=batch.block_table,
            row_splits=batch.row_splits,
            context_lens=batch.context_lens,
            parents=batch.parents,
        )
        model = self._model
        # A row beyond the rotary tables would read foreign memory.
        assert batch.positions.max() < model.max_model_len, "a row is beyond max_model_len"
        hidden = model.forward(
            batch.token_ids, batch.positions, metadata, self._cache.layers, self._taps
        )
        if len(batch.logit_rows) == len(batch.token_ids):
            return model.compute_logits(hidden)
        if not len(batch.logit_rows):
            return np.empty((0, self._vocab_size), dtype=np.float32)
        return model.compute_logits(hidden[batch.logit_rows])

    def _move(self, moves: Sequence[Moves]) -> None:
        sources = np.concatenate([move.sources for move in moves])
        destinations = np.concatenate([move.destinations for move in moves])
        for layer in self._cache.layers:
            compact_kv(layer.key, layer.value, sources, destinations)
        for caches in self._taps.values():
            for states in caches:
                rows = states.reshape(-1, states.shape[-1])
                rows[destinations] = rows[sources]


def _wants_best_tokens_only(plan: StepPlan) -> bool:
    return not any(
        sequence.wants_prompt_logprobs or (sequence.samples and not sequence.wants_best_tokens_only)
        for sequence in plan.sequences
    )
