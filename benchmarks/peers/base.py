# SPDX-License-Identifier: Apache-2.0
"""What bench_peers asks of a peer: speeds in process, and a server to send requests to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


class PeerError(Exception):
    """A peer could not be run; the message says which command failed, and why."""


@dataclass(frozen=True)
class Sizes:
    """Tokens of the in-process measurements.

    Attributes:
        prefill: prompt lengths to read.
        context, output: of a stream: prompt tokens, and tokens to generate after them.
        streams: how many streams to run at once.
    """

    prefill: Sequence[int] = (128, 512, 2048)
    context: int = 128
    output: int = 128
    streams: Sequence[int] = (4, 8, 16)


class InProcessPeer(ABC):
    """A peer without HTTP. `start` before measuring, `close` afterwards; rates are tokens/s.

    Attributes:
        name: in tables.
    """

    name: str

    @abstractmethod
    def start(self) -> None:
        """Load the model. Raises PeerError."""

    @abstractmethod
    def close(self) -> None:
        """End what start began; may be called twice."""

    @abstractmethod
    def prefill_rate(self, num_tokens: int) -> float:
        """Prompt tokens a second for a prompt of so many."""

    @abstractmethod
    def decode_rate(self, context: int, output: int) -> float:
        """Output tokens a second of one stream after a context, whose time does not count."""

    @abstractmethod
    def streams_rate(self, streams: int, context: int, output: int) -> float:
        """Output tokens a second of several streams together; their prompts' time counts."""
