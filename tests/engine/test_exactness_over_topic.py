# SPDX-License-Identifier: Apache-2.0
"""Engines on a shared topic that are cut off in turn: every answer is that of plain decoding."""

import asyncio
import itertools
import random
import threading
from dataclasses import replace

import pytest

from fdspec.scheduler.broker.values import WorkerCard
from fdspec.scheduler.topic import BrokerEngineTopic, Ready
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from tests.engine.test_exactness_on_fakes import ROOMY, SUBMITS
from tests.fakes.build import BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE, make_fake_engine
from tests.fakes.exactness import Result, Setting, compare, reference
from tests.scheduler.topic_world import Network, World

# Little room, so that requests are preempted and chunked as well.
SETTINGS = (Setting(4, 16, 40), Setting(3, 64, 60))
PROPOSERS = (lambda: NgramProposer(4, min_ngram_size=1), NaiveProposer)


class Worker:
    """An engine in a thread, its end of the topic, and its network."""

    def __init__(self, world, number):
        self.network = Network(world)
        setting = SETTINGS[number]
        self.engine = make_fake_engine(PROPOSERS[number](), setting, habit=10.0)
        self.topic = BrokerEngineTopic(self.network.open, WorkerCard(f"w{number}"), world.timing)
        self.engine.topic = self.topic
        ready = Ready(
            VOCAB_SIZE, MAX_MODEL_LEN, setting.num_blocks, BLOCK_SIZE, setting.max_num_seqs
        )
        self._stopping = threading.Event()
        self.topic.publish(ready)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.engine.run(self._stopping.is_set, idle_s=0.05)

    def close(self):
        self.network.is_cut = False
        self._stopping.set()
        self._thread.join()
        self.topic.close()


async def answer(client, submit, results):
    stream = await client.submit([submit])
    try:
        async for batch in stream:
            for event in batch:
                results[event.request_id, event.choice].add(event)
    finally:
        client.release(stream)


async def disturb(workers, source, num_cuts):
    """Cut off one worker after the other for longer than it may be silent."""
    for number in range(num_cuts):
        network = workers[number % len(workers)].network
        await asyncio.sleep(source.uniform(0.05, 0.3))
        network.is_cut = True
        await asyncio.sleep(1.3)
        network.is_cut = False


@pytest.mark.parametrize("num_cuts", [2, pytest.param(30, marks=pytest.mark.full)])
def test_answers_are_those_of_plain_decoding(num_cuts):
    expected = reference(lambda p, s: make_fake_engine(p, s, habit=10.0), SUBMITS, ROOMY)

    async def main():
        world = World(lease_s=3.0)
        workers = [Worker(world, number) for number in range(2)]
        client = world.client()
        try:
            trouble = asyncio.create_task(disturb(workers, random.Random(3), num_cuts))
            num_tokens = 0
            for number in itertools.count():
                if trouble.done():
                    break
                # An id that is used again would be taken for a repeated submission.
                submits = [replace(s, request_id=f"{number}/{s.request_id}") for s in SUBMITS]
                wanted = {(f"{number}/{name}", c): r for (name, c), r in expected.items()}
                results = {key: Result() for key in wanted}
                await asyncio.gather(*(answer(client, submit, results) for submit in submits))
                num_tokens += compare(wanted, results)
            await trouble
            return num_tokens
        finally:
            await asyncio.to_thread(lambda: [worker.close() for worker in workers])
            await asyncio.to_thread(world.close)

    num_tokens = asyncio.run(asyncio.wait_for(main(), 250))
    assert num_tokens > 100
