# SPDX-License-Identifier: Apache-2.0
"""What crosses the scheduler topic: commands in, token events out. Frozen, plain, serialisable.

What every step makes for every sequence is a named tuple: those are made and sent fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fdspec.core.sampling_params import SamplingParams


class FinishReason(Enum):
    """Why a choice ended; HANDOFF: only here, and another engine goes on with it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    HANDOFF = "handoff"


@dataclass(frozen=True, slots=True)
class Submit:
    """One request: a prompt and `params.n` choices.

    Attributes:
        request_id: unique on the topic; any characters.
        prompt: prompt token ids, at least one.
        params: `seed` and `max_tokens` are resolved (not None).
        priority: smaller is served first; ties by arrival.
        cache_salt: cached blocks are shared only among requests of the same salt.
        user: whom the request is for; empty if unknown. Matters only where users get fair shares.
        emitted: how far each choice has come elsewhere, to go on from there: its output tokens so
            far, or None if it has ended. Empty for a request that starts.
        offers: the KV cache of each choice's tokens but the newest, for whoever can read it; empty
            bytes for a choice without. Saves time, never changes a token.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    user: str = ""
    emitted: tuple[tuple[int, ...] | None, ...] = ()
    offers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Abort:
    """End every choice of a request; unknown ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Forget what is cached for later requests; running ones keep what they hold.

    The engine answers with the number of blocks under this id.
    """

    request_id: str


Command = Submit | Abort | ClearCache


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Logprob (natural log) of one token and of the most likely ones at its position.

    Attributes:
        token_id: the token.
        logprob: its log probability under the raw logits.
        rank: 1 for the most likely token.
        top: (token id, logprob), most likely first, ties by lower id.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class DraftStats(NamedTuple):
    """What one step drafted for one choice, after the stop walk.

    Attributes:
        num_drafted: draft tokens that were verified.
        num_accepted: of those, how many were accepted and kept.
        source: name of the proposer.
        num_positions: length of the longest path that was verified; 0 stands for num_drafted, as in
            a chain.
        by_source: (source, num_drafted, num_accepted) of each if the draft has several.
    """

    num_drafted: int
    num_accepted: int
    source: str
    num_positions: int = 0
    by_source: tuple[tuple[str, int, int], ...] = ()


class TokenEvent(NamedTuple):
    """New tokens of one choice, or its end, or both.

    Attributes:
        request_id: the Submit's id.
        choice: 0..n-1.
        index: output index of tokens[0]; consecutive events of a choice are contiguous.
        tokens: new output tokens; may be empty for an abort or error.
        logprobs: one for each token if requested.
        prompt_logprobs: on the first event if requested: None for the first prompt token, then one
            for each further prompt token.
        finish: set on the last event of the choice.
        stop_reason: the stop string or token id that ended it, None for EOS or length.
        error: message for the client when finish is ERROR.
        draft: drafting of this step; None if nothing was drafted.
        num_cached: prompt tokens that needed no computation (first event).
        offer: with HANDOFF: the sequence's KV cache, for whoever goes on. Never reaches a client.
    """

    request_id: str
    choice: int
    # Instead of tuple.index, which makes no sense here.
    index: int  # type: ignore[assignment]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    draft: DraftStats | None = None
    num_cached: int = 0
    offer: bytes = b""
