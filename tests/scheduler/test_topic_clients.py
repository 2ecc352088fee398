# SPDX-License-Identifier: Apache-2.0
"""Both back ends behave alike: routing, streams, aborts, death; the engine's end is in a thread."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from fdspec.core import Abort, Command, EngineDead, FinishReason, SamplingParams, Submit, TokenEvent
from fdspec.scheduler.topic import (
    EngineStats,
    Fatal,
    InProcessClient,
    InProcessTopic,
    LocalEngineTopic,
    LocalTopicClient,
    Ready,
)

READY = Ready(100, 64, 8, 16, 4)
DEADLINE_S = 30.0


def open_pair(kind):
    if kind == "in_process":
        topic = InProcessTopic()
        return topic, InProcessClient(topic)
    client = LocalTopicClient()
    return LocalEngineTopic(client.endpoint), client


@pytest.fixture(params=["in_process", "local_socket"])
def run(request):
    """Run `scenario(engine, client)` in an event loop, with everything closed afterwards."""

    def run_scenario(scenario):
        async def main():
            engine, client = open_pair(request.param)
            try:
                engine.publish(READY)
                assert await client.wait_ready() == READY
                await scenario(engine, client)
            finally:
                client.close()
                engine.close()

        asyncio.run(asyncio.wait_for(main(), DEADLINE_S))

    return run_scenario


async def poll(engine, count):
    """The engine's next `count` commands."""
    commands: list[Command] = []
    while len(commands) < count:
        commands += await asyncio.to_thread(engine.poll, count - len(commands), 1.0)
    return commands


def submit(request_id, num_choices=1):
    return Submit(request_id, (1, 2), SamplingParams(max_tokens=4, seed=1, n=num_choices))


async def collect(stream):
    return [event async for batch in stream for event in batch]


def test_events_reach_their_own_stream_in_order(run):
    async def scenario(engine, client):
        first, second = await client.submit([submit("a")]), await client.submit([submit("b", 2)])
        assert await poll(engine, 2) == [submit("a"), submit("b", 2)]
        end = FinishReason.LENGTH
        events = [
            TokenEvent("a", 0, 0, (5,)),
            TokenEvent("b", 1, 0, (6, 7), finish=end),
            TokenEvent("unknown", 0, 0, (9,)),
            TokenEvent("b", 0, 0, (8,)),
        ]
        engine.emit(events)
        engine.emit(
            [TokenEvent("a", 0, 1, (5,), finish=end), TokenEvent("b", 0, 1, (8,), finish=end)]
        )
        assert [event.index for event in await collect(first)] == [0, 1]
        assert [(e.choice, e.tokens) for e in await collect(second)] == [
            (1, (6, 7)),
            (0, (8,)),
            (0, (8,)),
        ]
        client.release(first)
        client.release(second)
        assert client.num_requests == 0
        engine_commands = await asyncio.to_thread(engine.poll, 8, 0.05)
        assert engine_commands == [], "a finished request is not aborted"

    run(scenario)


def test_releasing_an_unfinished_stream_aborts_once(run):
    async def scenario(engine, client):
        stream = await client.submit([submit("a")])
        client.release(stream)
        client.release(stream)
        assert await poll(engine, 2) == [submit("a"), Abort("a")]
        assert await asyncio.to_thread(engine.poll, 8, 0.05) == []
        engine.emit([TokenEvent("a", 0, 0, (1,))])
        engine.publish(EngineStats(num_running=3))
        while client.stats.num_running != 3:
            await asyncio.sleep(0.001)

    run(scenario)


def test_one_stream_for_several_requests(run):
    async def scenario(engine, client):
        stream = await client.submit([submit("a"), submit("b", 2), submit("c")])
        await poll(engine, 3)
        end = FinishReason.LENGTH
        engine.emit([TokenEvent("b", 0, 0, (1,), finish=end), TokenEvent("a", 0, 0, (2,))])
        engine.emit([TokenEvent("a", 0, 1, (3,), finish=end), TokenEvent("b", 1, 0, (4,))])
        seen: list[TokenEvent] = []
        async for batch in stream:
            seen += batch
            if len(seen) == 4:
                break
        assert [event.tokens for event in seen] == [(1,), (2,), (3,), (4,)]
        assert stream.unfinished_ids() == ["b", "c"]
        client.release(stream)
        assert await poll(engine, 2) == [Abort("b"), Abort("c")]
        assert client.num_requests == 0

    run(scenario)


def test_many_messages_both_ways(run):
    async def scenario(engine, client):
        streams = [await client.submit([submit(f"{i}")]) for i in range(50)]
        assert len(await poll(engine, 50)) == 50
        for index in range(200):
            last = FinishReason.LENGTH if index == 199 else None
            engine.emit([TokenEvent(f"{i}", 0, index, (index,), finish=last) for i in range(50)])
        collected = asyncio.gather(*map(collect, streams))
        while not collected.done():
            # What did not fit at once leaves while the engine polls, as it always does.
            assert await asyncio.to_thread(engine.poll, 8, 0.01) == []
        for events in await collected:
            assert [event.index for event in events] == list(range(200))

    run(scenario)


def test_death_fails_streams_after_their_events(run):
    async def scenario(engine, client):
        reasons: list[str] = []
        client.on_death = reasons.append
        stream = await client.submit([submit("a")])
        await poll(engine, 1)
        engine.emit([TokenEvent("a", 0, 0, (5,))])
        engine.publish(Fatal("the disk is on fire"))
        seen: list[TokenEvent] = []
        with pytest.raises(EngineDead, match="disk is on fire"):
            async for batch in stream:
                seen += batch
        assert [event.tokens for event in seen] == [(5,)]
        client.engine_died("again")
        assert reasons == ["the disk is on fire"]
        with pytest.raises(EngineDead, match="disk is on fire"):
            await client.submit([submit("b")])
        client.release(stream)

    run(scenario)


def test_waiting_for_an_engine_that_dies():
    async def main():
        topic = InProcessTopic()
        client = InProcessClient(topic)
        topic.publish(Fatal("no model"))
        with pytest.raises(EngineDead, match="no model"):
            await client.wait_ready()

    asyncio.run(main())


def test_socket_is_private_and_removed():
    async def main():
        client = LocalTopicClient()
        path = Path(client.endpoint)
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
        assert path.exists()
        client.close()
        client.close()
        assert not path.parent.exists()

    asyncio.run(main())


def test_submit_without_an_engine_process():
    async def main():
        client = LocalTopicClient()
        try:
            with pytest.raises(EngineDead, match="does not take requests"):
                await client.submit([submit("a")])
            assert client.num_requests == 0
        finally:
            client.close()

    asyncio.run(main())


def test_messages_larger_than_the_socket_takes():
    """Neither side blocks; what is not taken at once goes out when there is room."""

    async def main():
        client = LocalTopicClient()
        engine = LocalEngineTopic(client.endpoint)
        try:
            engine.publish(READY)
            await client.wait_ready()
            prompt = tuple(range(100_000))
            requests = [
                Submit(f"{i}", prompt, SamplingParams(max_tokens=4, seed=1)) for i in range(20)
            ]
            streams = [await client.submit([request]) for request in requests]
            assert await poll(engine, 20) == requests
            end = FinishReason.LENGTH
            for request in requests:
                engine.emit([TokenEvent(request.request_id, 0, 0, prompt, finish=end)])
            collected = asyncio.gather(*map(collect, streams))
            while not collected.done():
                # An engine that has nothing to do sends the rest while it waits.
                assert await asyncio.to_thread(engine.poll, 8, 0.01) == []
            for (event,) in await collected:
                assert event.tokens == prompt
        finally:
            client.close()
            engine.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_what_was_sent_before_the_close_arrives():
    async def main():
        client = LocalTopicClient()
        engine = LocalEngineTopic(client.endpoint)
        try:
            engine.publish(READY)
            engine.publish(Fatal("x" * 1_000_000))
            # It lingers until the last byte is taken.
            closing = asyncio.create_task(asyncio.to_thread(engine.close))
            with pytest.raises(EngineDead, match="^x{1000000}$"):
                while True:
                    await client.wait_ready()
                    await asyncio.sleep(0.001)
            await closing
        finally:
            client.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_an_engine_notices_that_the_frontend_has_gone():
    async def main():
        client = LocalTopicClient()
        engine = LocalEngineTopic(client.endpoint)
        engine.publish(READY)
        await client.wait_ready()
        await client.submit([submit("a")])
        client.close()
        engine.emit([TokenEvent("a", 0, 0, (1,))])
        assert await asyncio.to_thread(engine.poll, 8, 1.0) == [submit("a")]
        with pytest.raises(ConnectionError, match="closed the connection"):
            engine.poll(8, 1.0)
        engine.emit([TokenEvent("a", 0, 0, (1,))])
        engine.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_a_foreign_frame_ends_the_engine():
    async def main():
        client = LocalTopicClient()
        engine = LocalEngineTopic(client.endpoint)
        try:
            engine._socket.send(b"\x09nonsense")
            with pytest.raises(EngineDead, match="version 9"):
                await client.wait_ready()
        finally:
            client.close()
            engine.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
