# SPDX-License-Identifier: Apache-2.0
"""HandoffSink: the decode process's end of the handoff.

The engine starts pulls and asks, once a step, which have ended; it never waits. From `start` on the
destination blocks belong to the sink, until their result says that they are quiet, or `take_quiet`
gives them back.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from fdspec.core.kv_memory import KVMemory
from fdspec.transfer.layout import KVLayout
from fdspec.transfer.lease_keeper import LeaseKeeper
from fdspec.transfer.offer import Offer, OfferKey
from fdspec.transfer.pull import PullLimits
from fdspec.transfer.puller import Destination, Puller, PullJob, PullResult
from fdspec.transfer.transports import make_transport
from fdspec.transfer.transports.interface import Transport, TransportOptions


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How a decode process pulls.

    Attributes:
        transport: the keys, and where plug-ins may put files.
        transports: names, in order of preference.
        limits: how long a pull waits.
        num_pullers: pulls that go on at once.
    """

    transport: TransportOptions
    transports: tuple[str, ...] = ("shm", "zmq-tcp")
    limits: PullLimits = field(default_factory=PullLimits)
    num_pullers: int = 2


class HandoffSink:
    """Pulls offered blocks into one cache.

    Args:
        memory: the cache; stays valid until `close`. Prefault it, or first pulls are slow.
        layout: what its bytes depend on.
        options: see there.

    Raises:
        ConfigError: a transport cannot be used.
    """

    def __init__(self, memory: KVMemory, layout: KVLayout, options: SinkOptions) -> None:
        self._layout = layout
        self._transports: dict[str, Transport] = {}
        for name in options.transports:
            self._transports[name] = make_transport(name, options.transport)
            self._transports[name].register_pool(memory, None)
        keys = options.transport.client_keys
        self._shared = Destination(
            memory.layer_blocks(), layout, self._transports, keys, options.limits
        )
        self._jobs: dict[OfferKey, PullJob] = {}
        self._leases = LeaseKeeper(keys)
        self._pullers = [Puller(self._shared) for _ in range(options.num_pullers)]
        for puller in self._pullers:
            puller.start()

    def hold(self, offer: Offer) -> None:
        """Keep an offer's lease alive while its request waits for room. Idempotent."""
        self._leases.hold(offer)

    def drop(self, offer: Offer) -> None:
        """An offer that was held will not be started. Its lease runs out."""
        self._leases.drop(offer)

    def start(self, offer: Offer, block_ids: Sequence[int], num_present: int = 0) -> None:
        """Begin to pull.

        Args:
            offer: not being pulled already.
            block_ids: own blocks, one for each of the offer's; the sink's from now on.
            num_present: so many blocks at the start hold the right tokens already.

        Raises:
            LayoutMismatch: before any byte moves; names the field.
        """
        self._layout.check_equals(offer.layout)
        assert len(block_ids) == len(offer.block_ids), (block_ids, offer.block_ids)
        assert 0 <= num_present <= len(block_ids), num_present
        job = PullJob(offer, tuple(block_ids), num_present)
        assert job.key not in self._jobs, f"{job.key} is being pulled already"
        self._jobs[job.key] = job
        self._leases.hold(offer)
        self._shared.jobs.put(job)

    def abort(self, key: OfferKey) -> None:
        """Nobody wants it any more; its result comes all the same. Unknown keys are ignored."""
        if key in self._jobs:
            self._jobs[key].is_aborted.set()

    def poll(self) -> list[PullResult]:
        """Pulls that have ended since the last call; never waits."""
        results: list[PullResult] = []
        with contextlib.suppress(queue.Empty):
            while True:
                result = self._shared.results.get_nowait()
                self._leases.drop(self._jobs.pop(result.key).offer)
                results.append(result)
        return results

    def take_quiet(self) -> list[tuple[int, ...]]:
        """Blocks of results that were not quiet, and are now; never waits."""
        blocks: list[tuple[int, ...]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                blocks.append(self._shared.quiet.get_nowait())
        return blocks

    @property
    def num_pulling(self) -> int:
        """Pulls that have been started and not been polled. Does not modify."""
        return len(self._jobs)

    def close(self) -> None:
        """Abort everything, and stop. Idempotent."""
        for job in self._jobs.values():
            job.is_aborted.set()
        for _ in self._pullers:
            self._shared.jobs.put(None)
        for puller in self._pullers:
            puller.join()
        self._pullers.clear()
        self._leases.close()
        for transport in self._transports.values():
            transport.close()
