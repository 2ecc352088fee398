# SPDX-License-Identifier: Apache-2.0
"""Every message survives the wire, and nothing else gets through."""

import msgspec
import pytest

from fdspec.core import (
    Abort,
    ClearCache,
    DraftStats,
    FinishReason,
    SamplingParams,
    Submit,
    TokenEvent,
    TokenLogprob,
)
from fdspec.scheduler.topic import Cleared, CodecError, EngineStats, Fatal, Ready
from fdspec.scheduler.topic.codec import VERSION, decode, encode

FULL_PARAMS = SamplingParams(
    max_tokens=3,
    seed=2**63 - 1,
    stop=("\N{GRINNING FACE}", "end"),
    stop_token_ids=(1, 2),
    logit_bias=((5, -1.5),),
    bad_words_token_ids=((1, 2), (3,)),
    logprobs=2,
    prompt_logprobs=0,
    max_draft_tokens=0,
)
FULL_EVENT = TokenEvent(
    "request/ä",
    3,
    7,
    (1, 2),
    logprobs=(TokenLogprob(1, -0.25, 1, ((1, -0.25), (9, -3.0))), TokenLogprob(2, -9.0, 40)),
    prompt_logprobs=(None, TokenLogprob(4, -1.0, 2)),
    finish=FinishReason.STOP,
    stop_reason="\N{GRINNING FACE}",
    error="no",
    draft=DraftStats(4, 1, "ngram"),
    num_cached=64,
)
MESSAGES = [
    Submit("a", (1, 2, 3), FULL_PARAMS, priority=-1, cache_salt="salt", user="somebody"),
    Submit("a", (1, 2), SamplingParams(n=3), emitted=((5, 6), None, ())),
    Abort("a"),
    ClearCache("c"),
    Cleared("c", 12),
    (FULL_EVENT, TokenEvent("b", 0, 0, (), finish=FinishReason.ABORT, stop_reason=17)),
    (),
    Ready(100, 2048, 64, 16, 8, "ngram", 5, (("isa", "avx2"),)),
    EngineStats(*range(1, 15)),
    Fatal("out of memory"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message):
    decoded = decode(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"", "no header"),
        (bytes((VERSION,)), "no header"),
        (bytes((VERSION + 1,)) + b"A\x80", f"version {VERSION}"),
        (bytes((VERSION,)) + b"?\x80", "unknown kind"),
        (bytes((VERSION,)) + b"A\x80", "malformed A message"),
        (bytes((VERSION,)) + b"A" + msgspec.msgpack.encode({"request_id": 5}), "malformed"),
        (bytes((VERSION,)) + b"E" + b"\xff" * 8, "malformed"),
        (encode(Abort("a")) + b"\x00", "malformed"),
    ],
)
def test_bad_frames_are_refused(frame, complaint):
    with pytest.raises(CodecError, match=complaint):
        decode(frame)


def test_foreign_objects_are_refused():
    with pytest.raises(CodecError, match="dict is not a message"):
        encode({"request_id": "a"})  # type: ignore[arg-type]
