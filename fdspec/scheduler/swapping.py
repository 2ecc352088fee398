# SPDX-License-Identifier: Apache-2.0
"""Swapping: which preempted requests keep their keys and values outside the KV cache, and where.

Knows slots by number; the memory behind them is `fdspec/kv/swap_space.py`. Called by `Residents`.
"""

from __future__ import annotations

from fdspec.core import Request, StepPlan, Swapped

_LEAST_ROWS = 16
_WEIGHT_OF_NEW = 0.2


class Swapping:
    """Slots, and the choice between swapping a request and computing it again.

    A request is swapped if copying its blocks out and in takes less time than computing its tokens.
    The time of a copy was measured at the start; that of a token is a moving average over the steps
    that computed prompts. Until there has been one, requests are swapped.

    Attributes:
        num_swapped: times that a request was swapped, since the start.
    """

    def __init__(self, num_slots: int, block_ms: float) -> None:
        self.num_swapped = 0
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._block_ms = block_ms
        self._row_ms: float | None = None
        self._outs: list[tuple[int, int]] = []
        self._ins: list[tuple[int, int]] = []

    def learn(self, plan: StepPlan, step_ms: float) -> None:
        """Take the measured time of a step, if it says what computing a prompt costs."""
        if plan.swap_outs or plan.swap_ins or plan.num_rows < _LEAST_ROWS + len(plan.sequences):
            return
        row_ms = step_ms / plan.num_rows
        known = row_ms if self._row_ms is None else self._row_ms
        self._row_ms = known + _WEIGHT_OF_NEW * (row_ms - known)

    def swap_out(self, request: Request, num_blocks: int) -> None:
        """Keep the first num_blocks blocks of a running request, if that pays and they fit."""
        if not 0 < num_blocks <= len(self._free) or not self._pays(request, num_blocks):
            return
        slots = tuple(self._free.pop() for _ in range(num_blocks))
        self._outs += zip(request.block_ids[:num_blocks], slots, strict=True)
        request.swapped = Swapped(slots, request.num_computed)
        self.num_swapped += 1

    def swap_in(self, request: Request, num_found: int, num_tokens: int) -> int:
        """Bring back what a request does not find in the cache; its slots are free then.

        Args:
            request: with blocks for all its tokens.
            num_found: its first blocks that are cached.
            num_tokens: its first tokens that are cached.

        Returns:
            How many of its tokens are computed once the blocks are back, at least num_tokens.
        """
        swapped = request.swapped
        if swapped is None:
            return num_tokens
        if swapped.num_tokens > num_tokens:
            self._ins += zip(
                swapped.slots[num_found:],
                request.block_ids[num_found : len(swapped.slots)],
                strict=True,
            )
        self.forget(request)
        return max(num_tokens, swapped.num_tokens)

    def forget(self, request: Request) -> None:
        """Free a request's slots."""
        if request.swapped is not None:
            # What comes in is read after what goes out is written: but a step that takes requests
            # in swaps none out any more.
            self._free.extend(reversed(request.swapped.slots))
            request.swapped = None

    def take(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """(block, slot) to copy out and (slot, block) to copy in since the last call."""
        outs, ins = tuple(self._outs), tuple(self._ins)
        self._outs.clear()
        self._ins.clear()
        return outs, ins

    def check(self, requests: list[Request]) -> None:
        """Raise AssertionError if the slots of these and the free ones are not all."""
        held = [slot for r in requests if r.swapped is not None for slot in r.swapped.slots]
        assert sorted([*held, *self._free]) == list(range(self._num_slots)), "slots are lost"

    def _pays(self, request: Request, num_blocks: int) -> bool:
        if self._row_ms is None:
            return True
        return 2 * num_blocks * self._block_ms < request.num_computed * self._row_ms
