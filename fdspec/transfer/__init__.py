# SPDX-License-Identifier: Apache-2.0
"""Handing a prompt's KV cache from a prefill process to a decode process."""

from fdspec.transfer.errors import LayoutMismatch, TransferError, WireError
from fdspec.transfer.layout import KVLayout
from fdspec.transfer.offer import Completion, Offer, OfferKey, decode_offer, encode_offer
from fdspec.transfer.pull import PullLimits
from fdspec.transfer.puller import PullResult
from fdspec.transfer.server import HandoffServer, ServerOptions
from fdspec.transfer.sink import HandoffSink, SinkOptions
from fdspec.transfer.source import SourceCounts
from fdspec.transfer.transports.interface import (
    Capabilities,
    ClientKeys,
    Connection,
    Piece,
    Route,
    ServerKeys,
    Transport,
    TransportOptions,
)

__all__ = [
    "Capabilities",
    "ClientKeys",
    "Completion",
    "Connection",
    "HandoffServer",
    "HandoffSink",
    "KVLayout",
    "LayoutMismatch",
    "Offer",
    "OfferKey",
    "Piece",
    "PullLimits",
    "PullResult",
    "Route",
    "ServerKeys",
    "ServerOptions",
    "SinkOptions",
    "SourceCounts",
    "TransferError",
    "Transport",
    "TransportOptions",
    "WireError",
    "decode_offer",
    "encode_offer",
]
