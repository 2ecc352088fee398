# SPDX-License-Identifier: Apache-2.0
"""Frontends and workers on a broker: the client sees each token once, whatever dies or is lost."""

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest

from fdspec.core import FinishReason, TokenEvent, TokenLogprob
from fdspec.scheduler.broker.interface import BrokerUnavailable
from fdspec.scheduler.broker.values import TopicStats, WorkerCard
from fdspec.scheduler.topic import Fatal, InProcessTopic, Ready, worker_watch
from fdspec.scheduler.topic.broker_client import NoWorker, TopicBusy
from fdspec.scheduler.topic.broker_worker import BrokerEngineTopic
from tests.scheduler.topic_world import (
    DEADLINE_S,
    READY,
    ConnectedEngine,
    Network,
    World,
    answers,
    expected,
    submit,
    until,
)


@pytest.fixture
def play():
    """Run `scenario(world)` in an event loop, with everything closed afterwards."""

    def run(scenario, **options):
        async def main():
            world = World(**options)
            try:
                await scenario(world)
            finally:
                await asyncio.to_thread(world.close)

        asyncio.run(asyncio.wait_for(main(), DEADLINE_S))

    return run


def test_many_requests_over_two_workers(play):
    async def scenario(world):
        workers = [world.worker("v"), world.worker("w")]
        clients = [world.client(), world.client()]
        commands = [submit(f"r{n}", (n, n + 1, n + 2), n=1 + n % 3) for n in range(20)]
        found = await asyncio.gather(
            *(answers(clients[n % 2], command) for n, command in enumerate(commands))
        )
        assert found == [expected(command) for command in commands]
        assert all(worker.submitted for worker in workers)
        assert sum(len(worker.submitted) for worker in workers) == 20
        assert [client.num_requests for client in clients] == [0, 0]
        stats = await clients[0].topic_stats()
        assert (stats.num_waiting, stats.num_leased) == ((0, 0), 0)

    play(scenario, lease_s=30.0)


def test_a_worker_takes_no_more_than_it_has_slots(play):
    async def scenario(world):
        worker = world.worker("w", ready=Ready(300, 4096, 64, 64, 3))
        client = world.client()
        most = 0

        def look(_):
            nonlocal most
            most = max(most, worker.num_sequences)

        commands = [submit(f"r{n}", max_tokens=10) for n in range(9)]
        found = await asyncio.gather(*(answers(client, c, on_tokens=look) for c in commands))
        assert found == [expected(command) for command in commands]
        assert 1 < most <= 3

    play(scenario, lease_s=30.0)


def test_a_worker_that_is_cut_off_is_replaced_and_fenced(play):
    async def scenario(world):
        first = world.worker("first")
        client = world.client()
        command = submit("a", n=2)

        def cut(num_tokens):
            if num_tokens >= 10 and not first.network.is_cut:
                first.network.is_cut = True
                world.worker("second")

        assert await answers(client, command, on_tokens=cut) == expected(command)
        # The first one has gone on for itself, and hears now that it is too late.
        first.network.is_cut = False
        await until(lambda: first.num_sequences == 0 and first.link.num_held == 0)
        assert await answers(client, submit("b")) == expected(submit("b"))

    play(scenario)


def test_a_broker_that_comes_back_empty(play):
    async def scenario(world):
        worker = world.worker("w")
        client = world.client()
        commands = [submit(f"r{n}", (n, 1), n=2) for n in range(5)]
        restarted = False

        def restart(num_tokens):
            nonlocal restarted
            if num_tokens >= 12 and not restarted:
                restarted = True
                world.server.stop()
                asyncio.get_running_loop().call_later(
                    0.3, lambda: world.server.start(keep_data=False)
                )

        found = await asyncio.gather(*(answers(client, c, on_tokens=restart) for c in commands))
        assert restarted
        assert found == [expected(command) for command in commands]
        assert any(command.emitted for command in worker.submitted), (
            "it goes on, not from the start"
        )
        await until(lambda: worker.num_sequences == 0)

    play(scenario, lease_s=3.0)


def test_a_broker_that_is_gone_is_seen_as_trouble(play):
    async def scenario(world):
        world.worker("w")
        client = world.client()
        await answers(client, submit("a"))
        assert client.trouble is None
        world.server.stop()
        await until(lambda: client.trouble is not None)
        with pytest.raises(BrokerUnavailable):
            await client.submit([submit("b")])
        assert client.num_requests == 0
        world.server.start(keep_data=True)
        await until(lambda: client.trouble is None)
        assert await answers(client, submit("c")) == expected(submit("c"))

    play(scenario, lease_s=30.0)


def test_a_worker_that_ends_gives_its_requests_back(play):
    async def scenario(world):
        first = world.worker("first", step_s=0.01)
        client = world.client()
        command = submit("a")
        others: list[ConnectedEngine] = []
        closing: list[asyncio.Future[None]] = []

        def end(num_tokens):
            if num_tokens >= 5 and not others:
                others.append(world.worker("second"))
                first.stop()
                loop = asyncio.get_running_loop()
                closing.append(loop.run_in_executor(None, first.topic.close))

        assert await answers(client, command, on_tokens=end) == expected(command)
        (again,) = others[0].submitted
        assert len(again.emitted[0] or ()) >= 5
        # Nobody has to wait until it is taken for dead.
        await closing[0]
        (alive,) = (await client.topic_stats()).workers
        assert alive.card.worker_id == "second"

    play(scenario, lease_s=30.0)


def test_a_server_notices_that_its_engine_is_silent(play, monkeypatch):
    monkeypatch.setattr(worker_watch, "_INTERVAL_S", 0.02)

    async def scenario(world):
        server, network = InProcessTopic(), Network(world)
        engine = BrokerEngineTopic(network.open, WorkerCard("w"), world.timing, server=server)
        engine.publish(READY)
        (ready,) = server.receive()
        assert ready == replace(READY, worker_id="w")
        client = world.client()
        seen: list[TopicStats] = []
        client.dispatch(ready)
        client.on_topic = seen.append
        watcher = asyncio.create_task(worker_watch.watch_workers(client, has_engine=True))
        try:
            # Before it has come, it is not missed.
            await until(lambda: any(stats.workers for stats in seen))
            await until(lambda: not client.is_engine_silent)
            network.is_cut = True
            await until(lambda: client.is_engine_silent)
            network.is_cut = False
            await until(lambda: not client.is_engine_silent)
        finally:
            watcher.cancel()
            await asyncio.to_thread(engine.close)

    play(scenario)


def test_releasing_a_stream_ends_the_work(play):
    async def scenario(world):
        worker = world.worker("w", step_s=0.01)
        client = world.client()
        stream = await client.submit([submit("a", max_tokens=4000)])
        await until(lambda: worker.num_sequences == 1)
        client.release(stream)
        client.release(stream)
        await until(lambda: worker.num_sequences == 0)
        assert len(worker.aborted) == 1
        stats = await client.topic_stats()
        assert stats.num_leased == 0

    play(scenario, lease_s=30.0)


def test_clients_that_leave_at_any_time_leave_nothing_behind(play):
    async def scenario(world):
        workers = [world.worker("v", step_s=0.005), world.worker("w", step_s=0.005)]
        client = world.client()
        source = random.Random(5)

        async def come_and_go(number):
            command = submit(f"r{number}", n=1 + number % 2)
            patience_s = source.choice((0.0, 0.01, 0.1, 0.4, 60.0))
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(answers(client, command), patience_s)
                assert found == expected(command)

        await asyncio.gather(*(come_and_go(number) for number in range(60)))
        await until(lambda: not any(worker.num_sequences for worker in workers))
        await until(lambda: not any(worker.link.num_held for worker in workers))
        stats = await client.topic_stats()
        assert (stats.num_waiting, stats.num_leased) == ((0, 0), 0)
        assert client.num_requests == 0 and not client._sent

    play(scenario, lease_s=30.0)


def test_one_token_is_one_token(play):
    async def scenario(world):
        worker = world.worker("w")
        client = world.client()
        command = submit("a", max_tokens=1, n=2)
        assert await answers(client, command) == expected(command)
        await until(lambda: worker.link.num_held == 0)

    play(scenario, lease_s=30.0)


def test_a_frontend_that_dies_takes_its_requests_along(play):
    async def scenario(world):
        worker = world.worker("w", step_s=0.01)
        client, other = world.client(), world.client()
        await client.submit([submit("a", max_tokens=4000)])
        stream = await other.submit([submit("b", max_tokens=4000)])
        await until(lambda: worker.num_sequences == 2)
        client._is_open = False  # its threads end, and say nothing
        await until(lambda: worker.num_sequences == 1)
        other.release(stream)

    play(scenario)


def test_limits_of_the_topic(play):
    async def scenario(world):
        client = world.client(max_waiting=2, needs_worker=True)
        with pytest.raises(NoWorker, match="no worker is alive"):
            await client.submit([submit("a")])
        worker = world.worker("w", step_s=0.02, ready=Ready(300, 4096, 64, 64, 1))
        await until(lambda: worker.link._threads)
        while True:
            try:
                streams = [await client.submit([submit("a")])]
                break
            except NoWorker:
                await asyncio.sleep(0.01)
        await until(lambda: worker.num_sequences == 1)
        streams += [await client.submit([submit(f"w{n}")]) for n in range(2)]
        with pytest.raises(TopicBusy, match="2 requests are waiting"):
            await client.submit([submit("c"), submit("d")])
        assert client.num_requests == 3
        for stream in streams:
            client.release(stream)

    play(scenario, lease_s=30.0)


def test_a_request_that_expires_ends_with_an_error(play):
    async def scenario(world):
        client = world.client(ttl_s=0.3)
        stream = await client.submit([submit("a", n=2)])
        events = [event async for batch in stream for event in batch]
        assert [(e.choice, e.finish) for e in events] == [
            (0, FinishReason.ERROR),
            (1, FinishReason.ERROR),
        ]
        assert "scheduler_ttl" in events[0].error

    play(scenario)


def test_an_engine_that_fails_at_a_request_is_not_asked_for_ever(play):
    async def scenario(world):
        client = world.client()
        stream = await client.submit([submit("poison")])
        for number in range(3):
            topic = BrokerEngineTopic(Network(world).open, WorkerCard(f"w{number}"), world.timing)
            topic.publish(READY)
            assert await asyncio.to_thread(topic.poll, 5, 20.0)
            topic.publish(Fatal("boom"))
            await asyncio.to_thread(topic.close)
        events = [event async for batch in stream for event in batch]
        assert "three workers" in events[-1].error

    play(scenario, lease_s=30.0)


def test_an_event_that_is_too_large_becomes_an_error(play):
    async def scenario(world):
        client = world.client()
        topic = BrokerEngineTopic(Network(world).open, WorkerCard("w"), world.timing)
        topic.publish(READY)
        stream = await client.submit([submit("a", n=2)])
        (command,) = await asyncio.to_thread(topic.poll, 5, 20.0)
        entry = TokenLogprob(1, -1.0, 1, tuple((t, -1.0) for t in range(20)))
        large = TokenEvent(command.request_id, 0, 0, (1,), prompt_logprobs=(entry,) * 80_000)
        end = TokenEvent(command.request_id, 1, 0, (2,), finish=FinishReason.LENGTH)
        topic.emit([large, end])
        events = [event async for batch in stream for event in batch]
        assert [(e.choice, e.finish) for e in events] == [
            (0, FinishReason.ERROR),
            (1, FinishReason.LENGTH),
        ]
        assert "fewer logprobs" in events[0].error
        topic.emit([TokenEvent(command.request_id, 0, 1, (2,), finish=FinishReason.LENGTH)])
        await until(lambda: topic.num_held == 0)
        await asyncio.to_thread(topic.close)

    play(scenario, lease_s=30.0)
