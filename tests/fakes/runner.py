# SPDX-License-Identifier: Apache-2.0
"""FakeRunner: a model without weights whose logits depend on every visible entry of its KV cache.

Each slot holds a 64-bit value that mixes the values before it, as attention does; a row's logits
are a hash of its value. A wrong block, slot, mask, commit or chunk border changes the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import ModelOutput, SequencePlan, StepPlan, Verdict

_ODD = np.uint64(0x9E3779B97F4A7C15)
_TOKEN = np.uint64(0xD1B54A32D192ED03)
_VOCABULARY = np.uint64(0x8CB92BA72F3D8DD7)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _uniform(values: NDArray[np.uint64]) -> NDArray[np.float32]:
    return ((values >> np.uint64(40)).astype(np.float32) + np.float32(0.5)) / np.float32(2**24)


class FakeRunner:
    """Implements `core.protocols.ModelRunner`.

    Args:
        num_blocks, block_size: the cache.
        vocab_size: columns of the logits.
        habit: 0 makes text that depends on all of its history; the larger it is, the more the last
            token alone decides, so that text loops and drafts from history come true.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, vocab_size: int = 64, habit: float = 0.0
    ) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._habit = habit
        # What was never written must not look like zeros.
        self._values = _mix(np.arange(num_blocks * block_size, dtype=np.uint64) + _ODD)
        self._ids = np.arange(vocab_size, dtype=np.uint64) * _VOCABULARY
        self._logits = np.empty((0, vocab_size), np.float32)
        self._swapped: dict[int, NDArray[np.uint64]] = {}
        self.num_steps = 0
        self.num_rows = 0

    def execute(self, plan: StepPlan) -> ModelOutput:
        self.num_steps += 1
        self.num_rows += plan.num_rows
        # The previous step's logits are valid until now and not longer.
        self._logits.fill(np.nan)
        blocks = self._values.reshape(-1, self._block_size)
        for block_id, slot in plan.swap_outs:
            self._swapped[slot] = blocks[block_id].copy()
        for source, destination in plan.copies:
            blocks[destination] = blocks[source]
        for slot, block_id in plan.swap_ins:
            blocks[block_id] = self._swapped[slot]
        rows: list[NDArray[np.float32]] = []
        splits = [0]
        for sequence in plan.sequences:
            rows += self._run(sequence)
            splits.append(len(rows))
        self._logits = np.array(rows, np.float32).reshape(len(rows), self._vocab_size)
        return ModelOutput(self._logits, np.array(splits, np.int64))

    def commit(self, plan: StepPlan, verdicts: Sequence[Verdict]) -> None:
        kept = {verdict.sequence_id: verdict.kept for verdict in verdicts}
        for sequence in plan.sequences:
            slots = self._slots(sequence)
            first = len(sequence.history)
            for depth, index in enumerate(kept.get(sequence.sequence_id, ())):
                self._values[slots[first + depth]] = self._values[slots[first + index]]

    def _slots(self, sequence: SequencePlan) -> NDArray[np.int64]:
        """Cache slot of each position and draft row of a sequence."""
        count = sequence.start + sequence.num_rows
        assert len(sequence.block_ids) == -(-count // self._block_size), (
            "blocks do not fit the rows"
        )
        positions = np.arange(count)
        blocks = np.array(sequence.block_ids, np.int64)
        return blocks[positions // self._block_size] * self._block_size + (
            positions % self._block_size
        )

    def _run(self, sequence: SequencePlan) -> list[NDArray[np.float32]]:
        """Write every row's value; return the logits of those that need them."""
        slots = self._slots(sequence)
        num_committed = len(sequence.history)
        tokens = sequence.history[sequence.start :].tolist()
        parents: list[int] = []
        if sequence.draft is not None:
            tokens += sequence.draft.tokens.tolist()
            parents = sequence.draft.parents.tolist()
        logits = []
        paths: list[list[int]] = []
        for row, token in enumerate(tokens):
            assert 0 <= token < self._vocab_size, f"token {token} cannot be embedded"
            own = sequence.start + row
            visible = slots[: min(own, num_committed)]
            if own >= num_committed:
                parent = parents[own - num_committed]
                path = [] if parent < 0 else [*paths[parent], num_committed + parent]
                paths.append(path)
                visible = np.concatenate([visible, slots[path]])
            value = self._write(slots[own], token, visible)
            if row >= sequence.first_logit_row:
                logits.append(self._logits_of(value, token))
        return logits

    def _write(self, slot: int, token: int, visible: NDArray[np.int64]) -> np.uint64:
        weights = np.arange(1, 2 * len(visible) + 1, 2, dtype=np.uint64) * _ODD
        total = np.sum(self._values[visible] * weights, dtype=np.uint64)
        value = _mix(total + np.array([token + 1], np.uint64) * _TOKEN)[0]
        self._values[slot] = value
        return np.uint64(value)

    def _logits_of(self, value: np.uint64, token: int) -> NDArray[np.float32]:
        from_history = _uniform(_mix(self._ids ^ value))
        from_token = _uniform(_mix(self._ids + np.array([token + 1], np.uint64) * _TOKEN))
        return np.float32(4.0) * from_history + np.float32(self._habit) * from_token
