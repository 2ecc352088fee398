# SPDX-License-Identifier: Apache-2.0
"""SentRequest: what a frontend knows of a request that it has submitted to a broker.

It owns the request until its last event: if the broker loses it, the frontend submits it again,
with the tokens that it has. Used by `broker_client.py` in the frontend's event loop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

from fdspec.core import FinishReason, Submit, TokenEvent
from fdspec.scheduler.broker.values import Progress, Submission
from fdspec.scheduler.topic.codec import encode


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which conditions a frontend submits.

    Attributes:
        ttl_s: time from submission until a request is given up.
        max_waiting: requests in the queue from which on the broker refuses; 0 is no limit.
        needs_worker: True refuses requests while workers that they need are not alive.
        decode_prefill_tokens: prompts of at most so many tokens, and what has been emitted since,
            are computed by decode workers.
    """

    ttl_s: float = 900.0
    max_waiting: int = 0
    needs_worker: bool = False
    decode_prefill_tokens: int = 0


class Arrival(Enum):
    """How an event fits to those before it."""

    NEXT = "next"
    REPEATED = "repeated"
    GAP = "gap"


@dataclass(slots=True)
class SentRequest:
    """One request.

    Attributes:
        command: as it was submitted.
        deadline_s: when it is given up, by time.monotonic.
        attempt: how often it was submitted again.
        tokens: output so far of each choice.
        ended: which choices have had their last event.
    """

    command: Submit
    deadline_s: float
    attempt: int = 0
    tokens: list[list[int]] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.command.params.n)]
        self.ended = [False] * self.command.params.n

    def submission(self, frontend: str, terms: Terms) -> Submission:
        """What to tell the broker. Does not modify."""
        command = self.command
        emitted: tuple[Progress, ...] = tuple(
            None if ended else tuple(tokens)
            for tokens, ended in zip(self.tokens, self.ended, strict=True)
        )
        return Submission(
            command.request_id,
            frontend,
            encode(command),
            command.params.n,
            self.attempt,
            decode_below=max(terms.decode_prefill_tokens - len(command.prompt) + 1, 0),
            priority=command.priority,
            ttl_s=max(self.deadline_s - time.monotonic(), 0.0),
            max_waiting=terms.max_waiting,
            needs_worker=terms.needs_worker and self.attempt == 0,
            emitted=emitted,
        )

    def take(self, event: TokenEvent) -> Arrival:
        """Note an event, unless it is an old one or others are missing before it."""
        tokens = self.tokens[event.choice]
        is_old = event.index + len(event.tokens) <= len(tokens) and event.finish is None
        if self.ended[event.choice] or is_old:
            return Arrival.REPEATED
        if event.index != len(tokens):
            return Arrival.GAP
        tokens += event.tokens
        self.ended[event.choice] = event.finish is not None
        return Arrival.NEXT

    def failure(self, message: str) -> list[TokenEvent]:
        """Last events for the choices that have had none."""
        return [
            TokenEvent(
                self.command.request_id,
                choice,
                len(self.tokens[choice]),
                (),
                finish=FinishReason.ERROR,
                error=message,
            )
            for choice, ended in enumerate(self.ended)
            if not ended
        ]


def new_request(command: Submit, terms: Terms) -> SentRequest:
    """A request that is about to be submitted."""
    return SentRequest(command, time.monotonic() + terms.ttl_s)
