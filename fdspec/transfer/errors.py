# SPDX-License-Identifier: Apache-2.0
"""Why a handoff does not happen. All of them end in a recomputation, none in a wrong token."""

from __future__ import annotations

from fdspec.core.errors import FdspecError


class TransferError(FdspecError):
    """Bytes did not come: the peer is gone, silent, or answers nonsense."""


class LayoutMismatch(FdspecError):
    """Two caches cannot exchange blocks.

    Args:
        field: the first attribute of KVLayout that differs.
        mine: its value here.
        theirs: its value at the peer.
    """

    def __init__(self, field: str, mine: object, theirs: object) -> None:
        super().__init__(
            f"KV caches cannot be handed over: {field} is {mine!r} here but {theirs!r} at the "
            "peer; start both servers with the same model and cache settings"
        )
        self.field = field


class WireError(FdspecError):
    """A message is too large, of another version, or malformed."""
