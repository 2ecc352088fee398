# SPDX-License-Identifier: Apache-2.0
"""LeaseKeeper: renews the leases of offers that a decode process has not finished with."""

from __future__ import annotations

import threading
import time

from fdspec.transfer.errors import TransferError
from fdspec.transfer.messages import Renew
from fdspec.transfer.offer import Offer, OfferRef
from fdspec.transfer.peer import Peer
from fdspec.transfer.transports.interface import ClientKeys

_CONNECT_S = 0.5
_TICK_S = 0.1
# So often within a lease: two renewals may be lost.
_TIMES_A_LEASE = 3


class LeaseKeeper:
    """Holds offers, in a thread of its own. A source that is gone is tried again next time.

    Args:
        keys: CURVE keys, or None.
    """

    def __init__(self, keys: ClientKeys | None) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        # When each is to be renewed next.
        self._held: dict[OfferRef, tuple[Offer, float]] = {}
        self._stopping = threading.Event()
        self._peers: dict[str, Peer] = {}
        self._thread = threading.Thread(target=self._run, name="kv-leases", daemon=True)
        self._thread.start()

    def hold(self, offer: Offer) -> None:
        """Renew an offer from now on. Idempotent."""
        with self._lock:
            self._held.setdefault(offer.ref, (offer, time.monotonic()))

    def drop(self, offer: Offer) -> None:
        """Renew it no more. Idempotent."""
        with self._lock:
            self._held.pop(offer.ref, None)

    def close(self) -> None:
        """Stop. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_TICK_S):
            for offer in self._due(time.monotonic()):
                self._renew(offer)
            for boot_id, peer in list(self._peers.items()):
                if peer.is_gone():
                    self._peers.pop(boot_id).close()
        for peer in self._peers.values():
            peer.close()

    def _due(self, now_s: float) -> list[Offer]:
        with self._lock:
            due = [offer for offer, due_s in self._held.values() if due_s <= now_s]
            for offer in due:
                self._held[offer.ref] = (offer, now_s + offer.lease_s / _TIMES_A_LEASE)
        return due

    def _renew(self, offer: Offer) -> None:
        boot_id = offer.ref.boot_id
        try:
            if boot_id not in self._peers:
                self._peers[boot_id] = Peer(offer, {}, self._keys, _CONNECT_S)
            self._peers[boot_id].say(Renew(1, offer.ref))
        except TransferError:
            # The pull will find out, and say so.
            if boot_id in self._peers:
                self._peers.pop(boot_id).close()
