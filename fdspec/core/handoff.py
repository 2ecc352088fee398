# SPDX-License-Identifier: Apache-2.0
"""What scheduler and engine say to each other about KV caches that move between processes.

A *departure* leaves a prefill engine with its blocks lent to whoever reads them; a *load* fills the
blocks of a request in a decode engine. Offers are bytes here; `fdspec/transfer` reads them.
"""

from __future__ import annotations

from typing import NamedTuple

from fdspec.core.command import TokenEvent
from fdspec.core.request import SequenceId


class Departure(NamedTuple):
    """A sequence that goes on elsewhere.

    Attributes:
        sequence_id: whose.
        block_ids: its blocks, in order of position; lent from now on.
        num_tokens: that they hold, or will hold when its prompt has been computed.
        num_output: how many of its tokens are output.
    """

    sequence_id: SequenceId
    block_ids: tuple[int, ...]
    num_tokens: int
    num_output: int


class KVLoad(NamedTuple):
    """Keys and values that another process offers, and where they go.

    Attributes:
        sequence_id: whose.
        offer: as the other process wrote it.
        block_ids: own blocks for all its tokens, the first ones for what is offered; lent until the
            load has ended.
        num_present: so many of them, from the first on, hold the right tokens already.
        num_tokens: tokens of the sequence. The newest is not among those that are offered, unless
            the next one comes with the load.
    """

    sequence_id: SequenceId
    offer: bytes
    block_ids: tuple[int, ...]
    num_present: int
    num_tokens: int


class LoadEnd(NamedTuple):
    """How a load ended.

    Attributes:
        sequence_id: whose.
        is_loaded: False if the blocks hold nothing of use.
        is_quiet: False if they may still be written; they come back later in `HandoffNews`.
        event: the next token, if all tokens were offered before it was known.
    """

    sequence_id: SequenceId
    is_loaded: bool
    is_quiet: bool = True
    event: TokenEvent | None = None


class HandoffNews(NamedTuple):
    """What has happened since the scheduler heard last.

    Attributes:
        ends: loads that have ended.
        returned: lent blocks that nobody reads or writes any more.
    """

    ends: tuple[LoadEnd, ...] = ()
    returned: tuple[tuple[int, ...], ...] = ()


NO_NEWS = HandoffNews()


class HandoffCounts(NamedTuple):
    """Totals of one engine since its start.

    Attributes:
        num_offered: sequences that a prefill engine handed over.
        num_loaded: sequences whose blocks a decode engine took over.
        num_failed: sequences that it had to compute itself, though they were offered.
        num_bytes: that it read.
        load_ms: milliseconds that its good loads took, together.
    """

    num_offered: int = 0
    num_loaded: int = 0
    num_failed: int = 0
    num_bytes: int = 0
    load_ms: float = 0.0
