# SPDX-License-Identifier: Apache-2.0
"""Puller: a thread that does what pulls say, one after another. HandoffSink has some of them."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fdspec.transfer.checksums import Layers, first_damaged
from fdspec.transfer.errors import TransferError
from fdspec.transfer.layout import KVLayout
from fdspec.transfer.offer import Completion, Offer, OfferKey
from fdspec.transfer.peer import Peer
from fdspec.transfer.pull import (
    Action,
    End,
    Outcome,
    Pull,
    PullLimits,
    Quiesce,
    Read,
    Say,
    Verify,
    Wait,
)
from fdspec.transfer.transports.interface import (
    ClientKeys,
    Connection,
    Route,
    Transport,
)

# How soon an abort is noticed, and how often transports are asked whether they are quiet.
_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class PullJob:
    """One pull to be done.

    Attributes:
        offer: what is offered.
        block_ids: own blocks for it, in order of position.
        num_present: so many of them hold the right tokens already.
        is_aborted: set when nobody wants it any more.
    """

    offer: Offer
    block_ids: tuple[int, ...]
    num_present: int
    is_aborted: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> OfferKey:
        """Names the offer."""
        return self.offer.ref.key


@dataclass(frozen=True, slots=True)
class PullResult:
    """How a pull ended.

    Attributes:
        key: of the offer.
        outcome: loaded: the blocks hold the prompt's KV; recompute: compute the prompt; aborted.
        reason: why not loaded.
        completion: first token and the rest, if loaded.
        transport: by which the blocks came; empty if none did.
        num_bytes: read.
        seconds: from the start of the pull, waiting for the source's computation included.
        is_quiet: False if the blocks must not be used yet; `HandoffSink.take_quiet` gives them
            back.
    """

    key: OfferKey
    outcome: Outcome
    reason: str
    completion: Completion | None
    transport: str
    num_bytes: int
    seconds: float
    is_quiet: bool


@dataclass(frozen=True, slots=True)
class Destination:
    """What all pullers of a process share.

    Attributes:
        layers: own cache, `KVMemory.layer_blocks()`.
        layout: of it.
        transports: own ends by name, in order of preference.
        keys: CURVE keys, or None.
        limits: how long to wait.
        jobs: what is to be done; None ends a puller.
        results: what has been done.
        quiet: own blocks that no transport writes any more.
    """

    layers: Layers
    layout: KVLayout
    transports: Mapping[str, Transport]
    keys: ClientKeys | None
    limits: PullLimits
    jobs: queue.SimpleQueue[PullJob | None] = field(default_factory=queue.SimpleQueue)
    results: queue.SimpleQueue[PullResult] = field(default_factory=queue.SimpleQueue)
    quiet: queue.SimpleQueue[tuple[int, ...]] = field(default_factory=queue.SimpleQueue)


class Puller(threading.Thread):
    """Does jobs until it gets None.

    Args:
        shared: where jobs come from and results go.
    """

    def __init__(self, shared: Destination) -> None:
        super().__init__(name="kv-pull", daemon=True)
        self._shared = shared
        self._peers: dict[str, Peer] = {}
        # Connections that may still write, and where.
        self._noisy: list[tuple[Connection, tuple[int, ...]]] = []

    def run(self) -> None:
        """Work."""
        while True:
            try:
                job = self._shared.jobs.get(timeout=_TICK_S if self._noisy else 1.0)
            except queue.Empty:
                self._tidy()
                continue
            if job is None:
                break
            self._shared.results.put(self._pull(job))
        for peer in self._peers.values():
            peer.close()
        for connection, block_ids in self._noisy:
            connection.close()
            self._shared.quiet.put(block_ids)

    def _tidy(self) -> None:
        """Forget peers that have ended, and hear whether connections are quiet by now."""
        for boot_id, peer in list(self._peers.items()):
            if peer.is_gone():
                self._drop(boot_id)
        for entry in list(self._noisy):
            connection, block_ids = entry
            if connection.quiesce(0.0):
                connection.close()
                self._noisy.remove(entry)
                self._shared.quiet.put(block_ids)

    def _pull(self, job: PullJob) -> PullResult:
        start_s = time.monotonic()
        offered = {end.transport for end in job.offer.endpoints}
        pull = Pull(
            job.offer,
            layout=self._shared.layout,
            num_present=job.num_present,
            transports=[name for name in self._shared.transports if name in offered],
            limits=self._shared.limits,
            now_s=start_s,
        )
        while not isinstance(action := pull.next(time.monotonic()), End):
            if job.is_aborted.is_set():
                pull.abort()
            try:
                self._do(action, job, pull)
            except TransferError as error:
                pull.lost(str(error))
        self._say_last(job, action)
        is_loaded = action.outcome == "loaded"
        return PullResult(
            key=job.key,
            outcome=action.outcome,
            reason=action.reason,
            completion=pull.completion if is_loaded else None,
            transport=pull.transport if is_loaded else "",
            num_bytes=self._num_bytes(job) if is_loaded else 0,
            seconds=time.monotonic() - start_s,
            is_quiet=action.is_quiet,
        )

    def _do(self, action: Action, job: PullJob, pull: Pull) -> None:
        """One step of a pull (TransferError: the source is gone)."""
        if isinstance(action, Say):
            self._peer(job).say(action.call)
        elif isinstance(action, Wait):
            self._hear(job, pull, min(action.until_s - time.monotonic(), _TICK_S))
        elif isinstance(action, Read):
            self._read(action, job, pull)
            self._hear(job, pull, 0.0)
        elif isinstance(action, Verify):
            indices = range(action.first, len(job.block_ids))
            pull.verified(first_damaged(self._shared.layers, job.block_ids, indices, action.sums))
        elif isinstance(action, Quiesce):
            pull.quieted(self._quiesce(job, action.transport))

    def _read(self, action: Read, job: PullJob, pull: Pull) -> None:
        route = Route(job.offer.ref, job.offer.block_ids, job.block_ids)
        peer = self._peer(job)
        try:
            connection = peer.connection(action.transport)
            connection.read(route, action.pieces, self._shared.limits.read_s)
        except TransferError as error:
            pull.failed(str(error))
        else:
            pull.read(action.pieces)

    def _hear(self, job: PullJob, pull: Pull, timeout_s: float) -> None:
        """Wait for an answer, and take those that follow at once."""
        peer = self._peer(job)
        while (answer := peer.hear(timeout_s)) is not None:
            pull.answered(answer, time.monotonic())
            timeout_s = 0.0

    def _quiesce(self, job: PullJob, transport: str) -> bool:
        peer = self._peers.get(job.offer.ref.boot_id)
        connection = None if peer is None else peer.detach(transport)
        if connection is None:
            return True
        if connection.quiesce(self._shared.limits.quiet_s):
            connection.close()
            return True
        self._noisy.append((connection, job.block_ids[job.num_present :]))
        return False

    def _say_last(self, job: PullJob, end: End) -> None:
        peer = self._peers.get(job.offer.ref.boot_id)
        if peer is None:
            return
        with contextlib.suppress(TransferError):
            peer.say(end.call)
        if peer.is_gone():
            self._drop(job.offer.ref.boot_id)

    def _peer(self, job: PullJob) -> Peer:
        boot_id = job.offer.ref.boot_id
        if boot_id not in self._peers:
            self._peers[boot_id] = Peer(
                job.offer,
                self._shared.transports,
                self._shared.keys,
                connect_s=self._shared.limits.connect_s,
            )
        return self._peers[boot_id]

    def _drop(self, boot_id: str) -> None:
        self._peers.pop(boot_id).close()

    def _num_bytes(self, job: PullJob) -> int:
        sizes = [int(plane.shape[1]) for planes in self._shared.layers for plane in planes]
        return sum(sizes) * (len(job.block_ids) - job.num_present)
