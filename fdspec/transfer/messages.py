# SPDX-License-Identifier: Apache-2.0
"""What decode and prefill say to each other about an offer. Every call may be lost or repeated."""

from __future__ import annotations

from typing import Literal

import msgspec

from fdspec.transfer.offer import Completion, OfferRef, Progress


class Accept(msgspec.Struct, frozen=True, tag="accept"):
    """I shall read these blocks: tell me how far they are, now and whenever that changes."""

    number: int
    ref: OfferRef
    layout_digest: str


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Hold the blocks longer, and tell me whether you have held them until now."""

    number: int
    ref: OfferRef


class Done(msgspec.Struct, frozen=True, tag="done"):
    """I have all that I need. Never answered."""

    ref: OfferRef


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """I do not want the blocks any more. Never answered."""

    ref: OfferRef


Call = Accept | Renew | Done | Abort


class Answer(msgspec.Struct, frozen=True):
    """What the source says about an offer.

    Attributes:
        number: of the call; 0 if nobody asked (LAYER_READY).
        request_id, choice, epoch: which offer.
        state: held; gone: freed, or never known here; refused: see detail.
        detail: why it is refused.
        progress: of a held offer.
        completion: of a held offer that is complete; in answers to Accept and unasked ones.
    """

    number: int
    request_id: str
    choice: int
    epoch: int
    state: Literal["held", "gone", "refused"]
    detail: str = ""
    progress: Progress = Progress()
    completion: Completion | None = None
