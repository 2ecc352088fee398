# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode engines in threads, with real brokers and real handoffs between them."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from fdspec.core import FinishReason, Submit
from fdspec.core.kv_memory import KVMemory, KVPlane
from fdspec.core.protocols import Proposer
from fdspec.engine.decode_handoff import DecodeHandoff
from fdspec.engine.engine import Engine
from fdspec.engine.no_handoff import NoHandoff
from fdspec.engine.prefill_handoff import PrefillHandoff
from fdspec.scheduler.broker.values import Role, Timing, WorkerCard
from fdspec.scheduler.topic import BrokerEngineTopic, BrokerTopicClient, Ready, Terms
from fdspec.transfer import (
    HandoffServer,
    HandoffSink,
    KVLayout,
    PullLimits,
    ServerOptions,
    SinkOptions,
    TransportOptions,
)
from tests.fakes.build import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    make_fake_engine,
    make_fake_runner,
)
from tests.fakes.exactness import Result, Results, Setting
from tests.fakes.runner import FakeRunner
from tests.scheduler.topic_conformance.services import Service
from tests.scheduler.topic_world import Connection

HABIT = 10.0
DEADLINE_S = 120.0
LIMITS = PullLimits(deadline_s=60.0, connect_s=10.0, silence_s=20.0, ask_s=0.1)
_numbers = itertools.count()


def layout(**changes: object) -> KVLayout:
    """Of a fake runner's cache: one layer, 8 bytes for a token."""
    same = KVLayout("fake", "", "", "fake", "uint64", 1, 1, 1, BLOCK_SIZE)
    return msgspec.structs.replace(same, **changes)


def in_shared_memory(runner: FakeRunner, num_blocks: int) -> KVMemory:
    """Move a fake's cache to memory that other processes can map."""
    values = runner._values
    file_descriptor = os.memfd_create("fake-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file_descriptor, values.nbytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file_descriptor, fcntl.F_ADD_SEALS, seals)
    arena = np.frombuffer(mmap.mmap(file_descriptor, values.nbytes), np.uint8)
    shared = arena.view(np.uint64)
    shared[:] = values
    runner._values = shared
    plane = KVPlane(0, 0, BLOCK_SIZE * 8)
    return KVMemory(arena, (plane,), num_blocks, file_descriptor)


class Network:
    """Every connection of one member to the broker; cut it, and its calls fail."""

    def __init__(self, world: SplitWorld) -> None:
        self._world = world
        self.is_cut = False

    def open(self) -> Connection:
        world = self._world
        return Connection(self, world.service.connect(world.topic, world.timing.lease_s))


class Worker:
    """An engine in a thread, its end of the topic, and its end of the handoff."""

    def __init__(self, world: SplitWorld, role: Role, proposer: Proposer, setting: Setting) -> None:
        self.network = Network(world)
        self.error: BaseException | None = None
        runner = make_fake_runner(setting, habit=HABIT)
        self._memory = in_shared_memory(runner, setting.num_blocks)
        self.handoff = self._make_handoff(world, role)
        self.engine: Engine = make_fake_engine(
            proposer,
            setting,
            runner=runner,
            handoff=self.handoff,
            hands_over=role == "prefill",
            opens_early=world.is_early,
        )
        card = WorkerCard(f"{role}{next(_numbers)}", role)
        self.topic = BrokerEngineTopic(self.network.open, card, world.timing)
        self.engine.topic = self.topic
        ready = Ready(
            VOCAB_SIZE, MAX_MODEL_LEN, setting.num_blocks, BLOCK_SIZE, setting.max_num_seqs
        )
        self._stopping = threading.Event()
        self.topic.publish(ready)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End it at once: nobody hears a word of it any more."""
        self.network.is_cut = True
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._thread.is_alive():
            self._stopping.set()
            self._thread.join()
            self.handoff.close()
            self.topic.close()
            os.close(self._memory.file_descriptor)

    @property
    def num_missing(self) -> int:
        """Blocks that are not free."""
        stats = self.engine.monitor.stats()
        return stats.num_blocks - stats.num_free_blocks

    def _make_handoff(
        self, world: SplitWorld, role: Role
    ) -> PrefillHandoff | DecodeHandoff | NoHandoff:
        options = TransportOptions(world.folder)
        if role == "prefill":
            server_options = ServerOptions(
                options, world.transports, lease_s=world.kv_lease_s, renew_s=world.kv_lease_s
            )
            return PrefillHandoff(
                lambda free: HandoffServer(self._memory, world.layout, server_options, free),
                block_size=BLOCK_SIZE,
            )
        if role == "decode":
            sink_options = SinkOptions(options, world.transports, LIMITS)
            return DecodeHandoff(HandoffSink(self._memory, world.layout, sink_options))
        return NoHandoff()

    def _run(self) -> None:
        try:
            self.engine.run(self._stopping.is_set, idle_s=0.02, stats_interval_s=0.1)
        except BaseException as error:
            self.error = error
            raise


class SplitWorld:
    """A topic at a broker, its workers, and clients."""

    def __init__(
        self,
        service: Service,
        folder: Path,
        *,
        transports: tuple[str, ...] = ("shm", "zmq-tcp"),
        lease_s: float = 30.0,
        kv_lease_s: float = 30.0,
        is_early: bool = False,
    ) -> None:
        self.service = service
        self.folder = folder
        self.transports = transports
        self.timing = Timing(lease_s)
        self.kv_lease_s = kv_lease_s
        self.is_early = is_early
        self.topic = f"split{next(_numbers)}"
        self.layout = layout()
        self.workers: list[Worker] = []
        self._clients: list[BrokerTopicClient] = []

    def worker(self, role: Role, proposer: Proposer, setting: Setting) -> Worker:
        self.workers.append(Worker(self, role, proposer, setting))
        return self.workers[-1]

    def client(self, **terms: object) -> BrokerTopicClient:
        """In the running loop."""
        client = BrokerTopicClient(Network(self).open, Terms(**terms), self.timing)  # type: ignore
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for worker in self.workers:
            worker.close()
        errors = [worker.error for worker in self.workers if worker.error is not None]
        assert not errors, errors


async def answer(client: BrokerTopicClient, submit: Submit, results: Results) -> None:
    """Read one request's events to their end."""
    stream = await client.submit([submit])
    try:
        async for batch in stream:
            for event in batch:
                assert event.finish is not FinishReason.HANDOFF and not event.offer
                results[event.request_id, event.choice].add(event)
    finally:
        client.release(stream)


async def answers(
    client: BrokerTopicClient, submits: Sequence[Submit], expected: Results, prefix: str = ""
) -> tuple[Results, Results]:
    """What was wanted and what came, under ids with a prefix: an id is used once on a topic."""
    submits = [replace(submit, request_id=prefix + submit.request_id) for submit in submits]
    wanted = {(prefix + name, choice): result for (name, choice), result in expected.items()}
    results = {key: Result() for key in wanted}
    await asyncio.gather(*(answer(client, submit, results) for submit in submits))
    return wanted, results


async def until_idle(workers: Sequence[Worker]) -> None:
    """Wait until every block of every worker is free."""
    end_s = time.monotonic() + DEADLINE_S
    while missing := [worker.num_missing for worker in workers if worker.num_missing]:
        assert time.monotonic() < end_s, f"blocks are missing: {missing}"
        await asyncio.sleep(0.02)
