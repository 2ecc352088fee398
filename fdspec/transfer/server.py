# SPDX-License-Identifier: Apache-2.0
"""HandoffServer: the prefill process's end of the handoff.

Gives a HandoffSource its thread, socket, clock and transports. The engine calls `open`,
`computing`, `advance`, `complete` and `withdraw`; peers' calls come by the socket.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import zmq

from fdspec.core.kv_memory import KVMemory
from fdspec.transfer.checksums import block_checksums
from fdspec.transfer.errors import WireError
from fdspec.transfer.layout import KVLayout
from fdspec.transfer.messages import Abort, Accept, Call, Done
from fdspec.transfer.offer import (
    Completion,
    Endpoint,
    Offer,
    OfferKey,
    OfferRef,
    Progress,
    decode,
    encode,
)
from fdspec.transfer.source import HandoffSource, SourceCounts
from fdspec.transfer.step_watch import StepWatch
from fdspec.transfer.transports import make_transport
from fdspec.transfer.transports.interface import Transport, TransportOptions
from fdspec.transfer.zmq_sockets import Listener

_MAX_QUEUED = 1000
_MAX_CALL_BYTES = 1 << 20
_IDLE_MS = 50
_WATCHING_MS = 1


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a prefill process hands over.

    Attributes:
        transports: names; decode chooses among them.
        transport: where to listen, and the keys; control uses them, too.
        lease_s: how long a complete offer is held without a renewal.
        renew_s: how long a renewal holds it.
        checksums: let decode check every block.
    """

    transport: TransportOptions
    transports: tuple[str, ...] = ("shm", "zmq-tcp")
    lease_s: float = 30.0
    renew_s: float = 20.0
    checksums: bool = True


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that computes offered blocks: how many of each offer it completes."""

    num_blocks: dict[OfferKey, int]
    watch: StepWatch


class HandoffServer:
    """Offers blocks of one cache to other processes.

    Args:
        memory: the cache.
        layout: what its bytes depend on.
        options: see there.
        free: takes the blocks of an ended offer, once; on any thread, and must not call back.

    Raises:
        ConfigError: an address cannot be taken, or a transport cannot be used.
    """

    def __init__(
        self,
        memory: KVMemory,
        layout: KVLayout,
        options: ServerOptions,
        free: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._layers = memory.layer_blocks()
        self._options = options
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._advanced: dict[OfferKey, Progress] = {}
        self._changed: set[OfferKey] = set()
        self._readers: dict[OfferKey, set[bytes]] = {}
        self._stopping = False
        self._transports: list[Transport] = []
        keys = options.transport.server_keys
        self._listener = Listener(
            options.transport.listen,
            keys,
            max_queued=_MAX_QUEUED,
            max_message_bytes=_MAX_CALL_BYTES,
        )
        self._woken, self._waker = self._listener.wake_pair()
        try:
            endpoints = []
            for name in options.transports:
                transport = make_transport(name, options.transport)
                self._transports.append(transport)
                endpoints.append(Endpoint(name, transport.register_pool(memory, self._blocks_of)))
        except BaseException:
            self._close_sockets()
            raise
        self._source = HandoffSource(
            boot_id=secrets.token_hex(8),
            layout=layout,
            num_blocks=memory.num_blocks,
            control=self._listener.url,
            control_key=b"" if keys is None else keys.public,
            endpoints=tuple(endpoints),
            lease_s=options.lease_s,
            renew_s=options.renew_s,
            free=free,
        )
        self._thread = threading.Thread(target=self._serve, name="kv-handoff", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> SourceCounts:
        """How offers ended. Does not modify."""
        return self._source.counts

    @property
    def num_open(self) -> int:
        """Offers whose blocks are held. Does not modify."""
        return len(self._source)

    @property
    def address(self) -> str:
        """Where peers call. Does not modify."""
        return self._listener.url

    def open(self, key: OfferKey, block_ids: Sequence[int], num_tokens: int) -> Offer:
        """See `HandoffSource.open`."""
        with self._lock:
            return self._source.open(key, block_ids, num_tokens)

    def computing(
        self,
        num_blocks: Mapping[OfferKey, int],
        counter: Callable[[], int],
        num_layers: int | None = None,
    ) -> None:
        """A step begins; readers may take its layers one by one.

        Args:
            num_blocks: for each offer that the step computes rows of, how many blocks are complete
                after it.
            counter: layers appended, see StepWatch.
            num_layers: what it counts up to, if it does not count all layers of the cache; the
                others are complete when the step has ended.
        """
        with self._lock:
            watch = StepWatch(counter, num_layers or len(self._layers))
            self._running = _Running(dict(num_blocks), watch)
            self._wake()

    def advance(self, num_blocks: Mapping[OfferKey, int]) -> None:
        """A step has ended.

        Args:
            num_blocks: for each offer, how many blocks are complete now.
        """
        with self._lock:
            self._running = None
            for key, count in num_blocks.items():
                self._set_progress(key, Progress(num_blocks=count))
            self._wake()

    def complete(self, key: OfferKey, completion: Completion) -> Offer | None:
        """See `HandoffSource.complete`; checksums are added here if they are wanted.

        Call `advance` before: the running step must have ended.
        """
        with self._lock:
            offer = self._source.offer(key)
        if offer is None:
            return None
        if self._options.checksums:
            sums = block_checksums(self._layers, offer.block_ids)
            completion = Completion(
                completion.first_token, completion.first_event, completion.drafter_state, sums
            )
        with self._lock:
            self._advanced.pop(key, None)
            self._changed.add(key)
            self._wake()
            return self._source.complete(key, completion, time.monotonic())

    def withdraw(self, key: OfferKey) -> None:
        """See `HandoffSource.withdraw`."""
        with self._lock:
            self._source.withdraw(key)
            self._changed.add(key)
            self._wake()

    def check(self) -> None:
        """See `HandoffSource.check`."""
        with self._lock:
            self._source.check()

    def close(self) -> None:
        """Stop; offers that are still open are withdrawn. Idempotent."""
        if self._stopping:
            return
        with self._lock:
            self._stopping = True
            self._wake()
        self._thread.join()
        self._close_sockets()
        with self._lock:
            self._source.withdraw_all()

    def _close_sockets(self) -> None:
        for transport in self._transports:
            transport.close()
        self._woken.close()
        self._waker.close()
        self._listener.close()

    def _blocks_of(self, ref: OfferRef) -> tuple[int, ...] | None:
        with self._lock:
            return self._source.blocks_of(ref, time.monotonic())

    def _wake(self) -> None:
        self._waker.send(b"")

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._listener.socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while not self._stopping:
            is_watching = self._running is not None and bool(self._readers)
            ready = dict(poller.poll(_WATCHING_MS if is_watching else _IDLE_MS))
            if self._woken in ready:
                self._woken.recv()
            with self._lock:
                while (frames := self._listener.receive()) is not None:
                    self._take(frames)
                self._watch()
                self._tell_news()
                self._source.sweep(time.monotonic())

    def _take(self, frames: list[bytes]) -> None:
        peer = frames[0]
        try:
            call: Call = decode(b"".join(frames[1:]), Call)  # type: ignore[arg-type]
        except WireError:
            return
        answer = self._source.handle(call, time.monotonic())
        key = call.ref.key
        if answer is not None:
            self._listener.send([peer, encode(answer)])
            if isinstance(call, Accept) and answer.state == "held" and answer.completion is None:
                self._readers.setdefault(key, set()).add(peer)
        elif isinstance(call, Done | Abort):
            self._readers.pop(key, None)

    def _watch(self) -> None:
        running = self._running
        if running is None:
            return
        num_layers = running.watch.num_ready()
        for key, num_blocks in running.num_blocks.items():
            before = self._advanced.get(key, Progress())
            self._set_progress(key, Progress(before.num_blocks, num_layers, num_blocks))

    def _set_progress(self, key: OfferKey, progress: Progress) -> None:
        if self._advanced.get(key) != progress:
            self._advanced[key] = progress
            self._changed.add(key)
            self._source.advance(key, progress)

    def _tell_news(self) -> None:
        for key in self._changed:
            news = self._source.news(key)
            for peer in self._readers.get(key, ()):
                self._listener.send([peer, encode(news)])
            if news.completion is not None or news.state == "gone":
                self._readers.pop(key, None)
                self._advanced.pop(key, None)
        self._changed.clear()
