# SPDX-License-Identifier: Apache-2.0
"""What travels between a ZMQ member and the ZMQ broker: versioned msgpack of the contract's values.

A call is [header, verb, topic, arguments], an answer [header, state, value]; the header holds the
version and the number of the call. Never pickle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from fdspec.scheduler.broker.interface import MAX_PAYLOAD_BYTES
from fdspec.scheduler.broker.values import (
    Collected,
    Emission,
    EmitOutcome,
    Lease,
    LeaseRef,
    LeaseState,
    Submission,
    SubmitOutcome,
    Timing,
    TopicStats,
    WorkerCard,
)

VERSION = 3
MAX_MESSAGE_BYTES = 4 * MAX_PAYLOAD_BYTES
OK, WRONG = b"ok", b"wrong"
_HEADER = struct.Struct("<BQ")


@dataclass(frozen=True, slots=True)
class LeaseCall:
    """Arguments of `lease`."""

    worker: WorkerCard
    num_slots: int
    wait_s: float
    timing: Timing


@dataclass(frozen=True, slots=True)
class RenewCall:
    """Arguments of `renew`."""

    worker: WorkerCard
    leases: tuple[LeaseRef, ...]
    timing: Timing


@dataclass(frozen=True, slots=True)
class NackCall:
    """Arguments of `nack`."""

    leases: tuple[LeaseRef, ...]
    is_fault: bool


@dataclass(frozen=True, slots=True)
class CollectCall:
    """Arguments of `collect`."""

    frontend: str
    cursor: str
    wait_s: float
    timing: Timing


ARGUMENTS: dict[str, Any] = {
    "submit": Submission,
    "lease": LeaseCall,
    "renew": RenewCall,
    "emit": tuple[Emission, ...],
    "nack": NackCall,
    "leave": WorkerCard,
    "cancel": str,
    "stats": None,
    "collect": CollectCall,
}
ANSWERS: dict[str, Any] = {
    "submit": SubmitOutcome,
    "lease": list[Lease],
    "renew": list[LeaseState],
    "emit": list[EmitOutcome],
    "nack": None,
    "leave": None,
    "cancel": None,
    "stats": TopicStats,
    "collect": Collected,
}
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE_ARGUMENTS = {verb: msgspec.msgpack.Decoder(t).decode for verb, t in ARGUMENTS.items()}
_DECODE_ANSWER = {verb: msgspec.msgpack.Decoder(t).decode for verb, t in ANSWERS.items()}


class WireError(Exception):
    """A message is none of this version; the text is for the other side."""


def encode_call(number: int, verb: str, topic: str, arguments: object) -> list[bytes]:
    """Frames of a call."""
    return [_HEADER.pack(VERSION, number), verb.encode(), topic.encode(), _ENCODE(arguments)]


def encode_answer(number: int, value: object) -> list[bytes]:
    """Frames of an answer."""
    return [_HEADER.pack(VERSION, number), OK, _ENCODE(value)]


def encode_complaint(header: bytes, text: str) -> list[bytes]:
    """Frames that say what was wrong with a call."""
    return [header, WRONG, text.encode()]


def decode_call(frames: list[bytes]) -> tuple[int, str, str, Any]:
    """Number, verb, topic and arguments of a call.

    Raises:
        WireError: it is none of this version.
    """
    if len(frames) != 4 or len(frames[0]) != _HEADER.size:
        raise WireError("this is a broker of fdspec; that was no call of one of its members")
    version, number = _HEADER.unpack(frames[0])
    if version != VERSION:
        raise WireError(
            f"the broker speaks version {VERSION}, the member version {version}; install the same "
            "fdspec on both sides"
        )
    try:
        verb, topic = frames[1].decode(), frames[2].decode()
        return number, verb, topic, _DECODE_ARGUMENTS[verb](frames[3])
    except (UnicodeDecodeError, KeyError, msgspec.MsgspecError) as error:
        raise WireError(f"malformed call: {error}") from None


def number_of(frames: list[bytes]) -> int:
    """Which call an answer belongs to; -1 if it is no answer."""
    if len(frames) != 3 or len(frames[0]) != _HEADER.size:
        return -1
    number: int = _HEADER.unpack(frames[0])[1]
    return number


def decode_answer(verb: str, frames: list[bytes]) -> Any:
    """The value of an answer.

    Raises:
        WireError: the broker complains, or the answer is malformed.
    """
    if frames[1] != OK:
        raise WireError(frames[2].decode(errors="replace"))
    try:
        return _DECODE_ANSWER[verb](frames[2])
    except msgspec.MsgspecError as error:
        raise WireError(f"malformed answer: {error}") from None
