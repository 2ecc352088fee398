# SPDX-License-Identifier: Apache-2.0
"""Request: the state of one choice of one request. Only the batch scheduler changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core.sampling_params import SamplingParams

SequenceId = tuple[str, int]
"""(request id, choice index): names one sequence of tokens inside an engine."""


class Swapped(NamedTuple):
    """Where a waiting request's keys and values are outside the KV cache.

    Attributes:
        slots: one for each of its first blocks, in order.
        num_tokens: tokens that they hold.
    """

    slots: tuple[int, ...]
    num_tokens: int


class Status(Enum):
    """Where a request stands. LOADING: it holds blocks, which another process's are copied to."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


class TokenBuffer:
    """Append-only int32 tokens. `view` is free of copies, and what it returned never changes.

    Attributes:
        length: how many there are; the same as len(), and faster.
    """

    __slots__ = ("_data", "length")

    def __init__(self, tokens: tuple[int, ...] | list[int], reserve: int = 0) -> None:
        self._data = np.empty(max(len(tokens) + reserve, 16), dtype=np.int32)
        self._data[: len(tokens)] = tokens
        self.length = len(tokens)

    def __len__(self) -> int:
        return self.length

    def append(self, tokens: tuple[int, ...]) -> None:
        """Add tokens at the end; amortised O(len(tokens))."""
        if len(tokens) == 1 and self.length < len(self._data):
            self._data[self.length] = tokens[0]
            self.length += 1
            return
        end = self.length + len(tokens)
        if end > len(self._data):
            grown = np.empty(max(2 * len(self._data), end), dtype=np.int32)
            grown[: self.length] = self._data[: self.length]
            self._data = grown
        self._data[self.length : end] = tokens
        self.length = end

    def view(self, start: int = 0, end: int | None = None) -> NDArray[np.int32]:
        """Tokens start..end (half open) without a copy. Does not modify."""
        return self._data[start : self.length if end is None else end]


@dataclass(slots=True, eq=False)
class Request:
    """One choice of one request.

    While decoding, len(tokens) - num_computed == 1: the newest token is not in the cache yet.

    Attributes:
        sequence_id: (request id, choice index).
        params: shared by the choices of the request.
        tokens: prompt, then output.
        num_prompt: how many of the tokens are prompt.
        num_computed: tokens whose KV is in the cache.
        block_ids: blocks that hold them, in order of position.
        priority, turn, arrival: order of service, smaller first; turn is that of its user where
            users have fair shares, arrival is a counter.
        user: whom it is for.
        num_preempted: how often it lost its blocks.
        swapped: where its keys and values are if it waits and was swapped out.
        digests: names of the prefixes that its full blocks end, as far as they are known, after the
            name of the empty prefix.
        num_published: how many of its blocks, from the first on, others can find in the cache.
        num_cached: prompt tokens that were in the cache when it was first admitted.
        cache_salt: of the Submit.
        offer: its KV cache in another process; empty if there is none, or it was taken.
    """

    sequence_id: SequenceId
    params: SamplingParams
    tokens: TokenBuffer
    num_prompt: int
    priority: int = 0
    turn: int = 0
    arrival: int = 0
    user: str = ""
    num_computed: int = 0
    block_ids: tuple[int, ...] = ()
    status: Status = Status.WAITING
    num_preempted: int = 0
    swapped: Swapped | None = None
    digests: list[bytes] = field(default_factory=list)
    num_published: int = 0
    num_cached: int | None = None
    cache_salt: str = ""
    offer: bytes = b""

    @property
    def num_output(self) -> int:
        """Number of output tokens so far."""
        return self.tokens.length - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        """True if its newest token, an output token, is the only one that is not computed."""
        num_tokens = self.tokens.length
        return num_tokens > self.num_prompt and num_tokens - self.num_computed == 1
