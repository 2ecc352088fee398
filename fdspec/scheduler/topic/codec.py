# SPDX-License-Identifier: Apache-2.0
"""Bytes of the scheduler topic: a version byte, a kind byte, then msgpack. Never pickle.

Every back end that leaves the process uses `encode` and `decode`; they keep no state.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fdspec.core import Abort, ClearCache, Command, FdspecError, Submit, TokenEvent
from fdspec.scheduler.topic.messages import Cleared, EngineMessage, EngineStats, Fatal, Ready

VERSION = 6

_Events = tuple[TokenEvent, ...]
_KINDS: dict[type, bytes] = {
    Submit: b"S",
    Abort: b"A",
    ClearCache: b"C",
    tuple: b"E",
    Ready: b"R",
    EngineStats: b"G",
    Fatal: b"F",
    Cleared: b"D",
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind[0]: msgspec.msgpack.Decoder(_Events if cls is tuple else cls)
    for cls, kind in _KINDS.items()
}


class CodecError(FdspecError):
    """A frame is not a message of this version."""


def encode(message: Command | EngineMessage) -> bytes:
    """One frame: [version u8][kind u8][msgpack].

    Args:
        message: a command, a tuple of token events, or a status message.

    Raises:
        CodecError: the type is not a message of the topic.
    """
    kind = _KINDS.get(type(message))
    if kind is None:
        raise CodecError(f"{type(message).__name__} is not a message of the scheduler topic")
    return bytes((VERSION,)) + kind + _ENCODER.encode(message)


def decode(frame: bytes) -> Command | EngineMessage:
    """The message in a frame.

    Raises:
        CodecError: the frame is too short, of another version or kind, or malformed.
    """
    if len(frame) < 2:
        raise CodecError(f"a frame of {len(frame)} bytes has no header")
    if frame[0] != VERSION:
        raise CodecError(
            f"the peer speaks version {frame[0]} of the topic, this process version {VERSION}; "
            "install the same fdspec on both sides"
        )
    decoder = _DECODERS.get(frame[1])
    if decoder is None:
        raise CodecError(f"unknown kind of message {bytes(frame[1:2])!r}")
    try:
        message: Command | EngineMessage = decoder.decode(memoryview(frame)[2:])
    except msgspec.MsgspecError as error:
        raise CodecError(f"malformed {chr(frame[1])} message: {error}") from error
    return message
