# SPDX-License-Identifier: Apache-2.0
"""Offer: what prefill tells decode about one computed prompt. Frozen values, msgpack, never pickle.

Everything that decode needs travels in it, but for the blocks themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fdspec.transfer.errors import WireError
from fdspec.transfer.layout import KVLayout

VERSION = 1
MAX_MESSAGE_BYTES = 8 << 20
MAX_DRAFTER_STATE_BYTES = 1 << 20
MAX_BLOCKS = 1 << 16
_T = TypeVar("_T")

OfferKey = tuple[str, int, int]
"""(request id, choice, epoch)."""


class OfferRef(msgspec.Struct, frozen=True):
    """Names one offer, and proves that whoever names it has seen it.

    Attributes:
        boot_id: of the process that offers; a restarted one has another.
        request_id, choice, epoch: the sequence, and the lease of the topic under which it ran.
        secret: random; without it nobody reads or frees.
        generations: of the offered blocks, in their order; a block that has been given back since
            has a later one.
    """

    boot_id: str
    request_id: str
    choice: int
    epoch: int
    secret: bytes
    generations: tuple[int, ...]

    @property
    def key(self) -> OfferKey:
        """Names the offer inside its process."""
        return self.request_id, self.choice, self.epoch


class Completion(msgspec.Struct, frozen=True):
    """What is known once the last row of the prompt has been computed.

    Attributes:
        first_token: the first output token; -1 if prefill left it to decode.
        first_event: all that there is to tell of it, encoded by whoever reads it; empty if it has
            been told already.
        drafter_state: what the proposer exported; empty if it has none. Saves time, never changes
            tokens.
        checksums: [layers, blocks] little-endian uint64 (checksums.py); empty if none were made.
    """

    first_token: int = -1
    first_event: bytes = b""
    drafter_state: bytes = b""
    checksums: bytes = b""


class Endpoint(msgspec.Struct, frozen=True):
    """One way to the blocks.

    Attributes:
        transport: its registered name.
        descriptor: what the transport's other end needs in order to connect.
    """

    transport: str
    descriptor: bytes


class Offer(msgspec.Struct, frozen=True):
    """One prompt's KV, held for whoever knows the offer until the lease ends.

    Attributes:
        version: of this protocol.
        ref: names the offer.
        layout: of the source's cache.
        block_ids: blocks at the source, in order of position.
        num_tokens: tokens that the blocks hold.
        control: ZMQ address of the source.
        control_key: its public CURVE key (Z85), or empty.
        endpoints: ways to the blocks.
        lease_s: how long the blocks are held from the completion, or from the last renewal, on.
        completion: None in an offer that was made while the prompt was still being computed.
    """

    version: int
    ref: OfferRef
    layout: KVLayout
    block_ids: tuple[int, ...]
    num_tokens: int
    control: str
    control_key: bytes
    endpoints: tuple[Endpoint, ...]
    lease_s: float
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of an offer has been computed.

    Attributes:
        num_blocks: the first so many blocks are complete in all layers.
        num_layers: in the first so many layers more blocks are, as the running step goes on ...
        num_layer_blocks: ... namely so many.
    """

    num_blocks: int = 0
    num_layers: int = 0
    num_layer_blocks: int = 0

    def ready_blocks(self, layer: int) -> int:
        """Blocks, from the first on, that can be read in a layer."""
        if layer < self.num_layers:
            return max(self.num_blocks, self.num_layer_blocks)
        return self.num_blocks


def encode_offer(offer: Offer) -> bytes:
    """Bytes that `decode_offer` takes.

    Raises:
        WireError: a part is larger than a peer accepts.
    """
    if len(offer.block_ids) > MAX_BLOCKS:
        raise WireError(f"an offer has at most {MAX_BLOCKS} blocks, not {len(offer.block_ids)}")
    check_completion(offer.completion)
    return encode(offer)


def decode_offer(frame: bytes) -> Offer:
    """The offer in a message of a peer; every field is checked.

    Raises:
        WireError: the message is too large, of another version, malformed or inconsistent.
    """
    offer = decode(frame, Offer)
    num_blocks, layout = len(offer.block_ids), offer.layout
    if not 0 < num_blocks <= MAX_BLOCKS or len(offer.ref.generations) != num_blocks:
        raise WireError(f"an offer with {num_blocks} blocks or as many generations is not possible")
    if not (0 < offer.num_tokens <= num_blocks * layout.block_size and offer.lease_s > 0):
        raise WireError(f"{offer.num_tokens} tokens do not fill {num_blocks} blocks")
    check_completion(offer.completion)
    sums = b"" if offer.completion is None else offer.completion.checksums
    if sums and len(sums) != 8 * layout.num_layers * num_blocks:
        raise WireError(f"{len(sums)} bytes of checksums do not fit {num_blocks} blocks")
    return offer


def check_completion(completion: Completion | None) -> None:
    """Refuse a drafter state that is too large (WireError)."""
    size = 0 if completion is None else len(completion.drafter_state)
    if size > MAX_DRAFTER_STATE_BYTES:
        raise WireError(f"a drafter's state may have {MAX_DRAFTER_STATE_BYTES} bytes, not {size}")


def encode(message: object) -> bytes:
    """Version byte, then msgpack.

    Raises:
        WireError: the message is larger than a peer accepts.
    """
    frame = bytes((VERSION,)) + msgspec.msgpack.encode(message)
    if len(frame) > MAX_MESSAGE_BYTES:
        raise WireError(f"a message may have {MAX_MESSAGE_BYTES} bytes, not {len(frame)}")
    return frame


def decode(frame: bytes, kind: type[_T]) -> _T:
    """The message of a known kind in a frame of a peer.

    Raises:
        WireError: too large, of another version, or malformed.
    """
    if not 2 <= len(frame) <= MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {len(frame)} bytes")
    if frame[0] != VERSION:
        raise WireError(
            f"the peer speaks version {frame[0]} of the handoff, this process version {VERSION}; "
            "install the same fdspec on both sides"
        )
    try:
        return msgspec.msgpack.decode(memoryview(frame)[1:], type=kind)
    except msgspec.MsgspecError as error:
        raise WireError(f"malformed message: {error}") from None
