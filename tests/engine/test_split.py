# SPDX-License-Identifier: Apache-2.0
"""Answers over prefill and decode engines are those of plain decoding, whatever fails."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fdspec.scheduler.broker.values import TopicStats
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from tests.engine.split_world import HABIT, SplitWorld, answer, answers, layout, until_idle
from tests.engine.test_exactness_on_fakes import ROOMY, SUBMITS
from tests.fakes.build import make_fake_engine
from tests.fakes.exactness import Result, Setting, compare, reference
from tests.scheduler.topic_conformance.services import SERVICES, InProcessService

# They may differ in everything but the block; decode preempts, and prefill cuts prompts.
PREFILL = Setting(4, 16, 60)
DECODE = Setting(5, 64, 30)


def ngram():
    return NgramProposer(4, min_ngram_size=1)


@pytest.fixture(scope="module")
def expected():
    return reference(lambda p, s: make_fake_engine(p, s, habit=HABIT), SUBMITS, ROOMY)


@pytest.fixture
def folder():
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def world(folder):
    """Makes worlds around an in-process broker."""
    worlds = []

    def make(**options):
        worlds.append(SplitWorld(InProcessService(folder), folder, **options))
        return worlds[-1]

    yield make
    for made in worlds:
        made.close()


def run(main):
    return asyncio.run(asyncio.wait_for(main, 100))


@pytest.mark.parametrize(
    ("name", "transport", "proposer"),
    [
        ("in_process", "shm", ngram),
        ("in_process", "zmq-tcp", NaiveProposer),
        ("valkey", "shm", ngram),
        ("zmq-ipc", "zmq-tcp", ngram),
    ],
)
def test_answers_over_any_broker_and_transport(folder, expected, name, transport, proposer):
    service = SERVICES[name](folder)
    world = SplitWorld(service, folder, transports=(transport,))
    prefill = world.worker("prefill", proposer(), PREFILL)
    decode = world.worker("decode", proposer(), DECODE)

    async def main():
        client = world.client()
        num_tokens = 0
        for number in range(2):
            num_tokens += compare(*await answers(client, SUBMITS, expected, f"{number}/"))
        await until_idle(world.workers)
        return num_tokens

    assert run(main()) > 500
    ended_there = [r for r in expected.values() if len(r.tokens) == 1]
    num_moved = 2 * (len(expected) - len(ended_there))
    mine, theirs = prefill.engine.monitor.stats(), decode.engine.monitor.stats()
    assert (mine.num_offered_total, mine.num_handoffs_open) == (num_moved, 0)
    assert (theirs.num_loaded_total, theirs.num_load_failures_total) == (num_moved, 0)
    assert theirs.num_loaded_bytes_total > 0 and theirs.load_ms_total > 0
    assert mine.num_drafts_total == 0, "prefill does not decode"
    if proposer is ngram:
        assert theirs.num_accepted_tokens_total > 0
    world.close()
    service.stop()


@pytest.mark.parametrize("transport", ["shm", "zmq-tcp"])
def test_requests_that_are_handed_over_before_they_are_computed(world, expected, transport):
    """Their first token, or their end, comes with the last of their keys and values."""
    split = world(transports=(transport,), is_early=True)
    prefill = split.worker("prefill", NaiveProposer(), PREFILL)
    decode = split.worker("decode", ngram(), DECODE)

    async def main():
        client = split.client()
        for number in range(2):
            compare(*await answers(client, SUBMITS, expected, f"{number}/"))
        await until_idle(split.workers)

    run(main())
    mine, theirs = prefill.engine.monitor.stats(), decode.engine.monitor.stats()
    assert mine.num_offered_total == theirs.num_loaded_total > len(expected)
    assert (mine.num_handoffs_open, theirs.num_load_failures_total) == (0, 0)


def test_what_decode_has_already_is_not_moved(world, expected):
    """The same prompts again: only blocks that are not full are lacking, and ends of outputs."""
    split = world(transports=("shm",))
    split.worker("prefill", NaiveProposer(), replace(PREFILL, num_blocks=400))
    decode = split.worker("decode", NaiveProposer(), Setting(8, 64, 400))
    long = [submit for submit in SUBMITS if len(submit.prompt) > 30 and submit.params.n == 1]
    wanted = {key: r for key, r in expected.items() if key[0] in {s.request_id for s in long}}

    async def main():
        client = split.client()
        moved = []
        for number in range(2):
            compare(*await answers(client, long, wanted, f"{number}/"))
            await until_idle(split.workers)
            moved.append(decode.engine.monitor.stats().num_loaded_bytes_total)
        return moved

    first, both = run(main())
    assert both - first < first / 4


def test_offers_that_cannot_be_taken_are_computed_again(world, expected):
    """There is no way from one to the other."""
    split = world(transports=("zmq-tcp",), kv_lease_s=1.0)
    prefill = split.worker("prefill", NaiveProposer(), PREFILL)
    split.transports = ("shm",)
    decode = split.worker("decode", ngram(), DECODE)

    async def main():
        num_tokens = compare(*await answers(split.client(), SUBMITS, expected))
        await until_idle(split.workers)
        return num_tokens

    assert run(main()) > 200
    stats = decode.engine.monitor.stats()
    assert stats.num_load_failures_total > 10 and stats.num_loaded_total == 0
    assert prefill.engine.monitor.stats().num_handoffs_open == 0


def test_another_layout_is_computed_again(world, expected, caplog):
    split = world()
    split.worker("prefill", NaiveProposer(), PREFILL)
    split.layout = layout(model="another")
    decode = split.worker("decode", ngram(), DECODE)

    async def main():
        compare(*await answers(split.client(), SUBMITS[:3], _of(expected, SUBMITS[:3])))

    run(main())
    assert decode.engine.monitor.stats().num_load_failures_total == 3


def test_short_prompts_are_computed_by_decode(world, expected):
    split = world()
    prefill = split.worker("prefill", NaiveProposer(), PREFILL)
    decode = split.worker("decode", ngram(), DECODE)

    async def main():
        client = split.client(decode_prefill_tokens=17)
        compare(*await answers(client, SUBMITS, expected))

    run(main())
    short = {s.request_id for s in SUBMITS if len(s.prompt) <= 17}
    num_long = sum(len(r.tokens) > 1 for (name, _), r in expected.items() if name not in short)
    assert prefill.engine.monitor.stats().num_offered_total == num_long
    assert decode.engine.monitor.stats().num_loaded_total == num_long


def test_a_mixed_worker_beside_them(world, expected):
    """It takes prompts as prefill does, and goes on with them itself."""
    split = world()
    split.worker("prefill", NaiveProposer(), PREFILL)
    split.worker("decode", ngram(), DECODE)
    mixed = split.worker("mixed", ngram(), Setting(2, 16, 60))

    async def main():
        compare(*await answers(split.client(), SUBMITS, expected))

    run(main())
    stats = mixed.engine.monitor.stats()
    assert stats.num_steps_total > 0 and stats.num_load_failures_total == 0


@pytest.mark.parametrize("is_early", [False, True], ids=["", "early"])
def test_clients_that_leave(world, is_early):
    """In every phase; all blocks come back on both sides."""
    split = world(lease_s=3.0, kv_lease_s=1.0, is_early=is_early)
    split.worker("prefill", NaiveProposer(), PREFILL)
    split.worker("decode", ngram(), DECODE)
    source = random.Random(5)

    async def leave(client, submit, number):
        submit = replace(submit, request_id=f"{number}/{submit.request_id}")
        results = {(submit.request_id, choice): Result() for choice in range(submit.params.n)}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answer(client, submit, results), source.uniform(0.001, 0.1))
            raise TimeoutError

    async def main():
        client = split.client()
        for number in range(8):
            await asyncio.gather(*(leave(client, submit, number) for submit in SUBMITS))
        await until_idle(split.workers)
        stats: TopicStats = await client.topic_stats()
        assert (stats.num_waiting, stats.num_leased) == ((0, 0), 0)

    run(main())


async def disturb(split, source, num_faults):
    """Kill workers and put others in their place, or cut them off for longer than they may be."""
    proposers = {"prefill": NaiveProposer, "decode": ngram}
    settings = {"prefill": PREFILL, "decode": DECODE}
    roles = itertools.cycle(["prefill", "decode"])
    alive = {role: [split.worker(role, proposers[role](), settings[role])] for role in settings}
    for role in itertools.islice(roles, num_faults):
        await asyncio.sleep(source.uniform(0.02, 0.4))
        worker = alive[role][-1]
        if source.random() < 0.6:
            await asyncio.to_thread(worker.kill)
            alive[role].append(split.worker(role, proposers[role](), settings[role]))
        else:
            worker.network.is_cut = True
            await asyncio.sleep(1.3)
            worker.network.is_cut = False
    return [workers[-1] for workers in alive.values()]


@pytest.mark.parametrize("is_early", [False, True], ids=["", "early"])
@pytest.mark.parametrize(
    ("seed", "num_faults"), [(1, 2), pytest.param(2, 40, marks=pytest.mark.full)]
)
def test_workers_that_die_or_are_cut_off(world, expected, seed, num_faults, is_early):
    split = world(lease_s=3.0, kv_lease_s=2.0, is_early=is_early)

    async def main():
        client = split.client()
        trouble = asyncio.create_task(disturb(split, random.Random(seed), num_faults))
        num_tokens = 0
        for number in itertools.count():
            num_tokens += compare(*await answers(client, SUBMITS, expected, f"{number}/"))
            if trouble.done():
                break
        await until_idle(await trouble)
        return num_tokens

    assert run(main()) > 200


def _of(expected, submits):
    names = {submit.request_id for submit in submits}
    return {key: result for key, result in expected.items() if key[0] in names}
