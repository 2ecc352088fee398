# SPDX-License-Identifier: Apache-2.0
"""A broker in this process, with fake engines and clients whose network can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import time

from fdspec.core import FinishReason, SamplingParams, Submit
from fdspec.scheduler.broker.in_process import InProcessBroker, InProcessTopicServer
from fdspec.scheduler.broker.interface import BrokerUnavailable
from fdspec.scheduler.broker.values import Timing, WorkerCard
from fdspec.scheduler.topic import BrokerEngineTopic, BrokerTopicClient, Ready, Terms
from tests.entrypoints.fake_engine import FakeEngine
from tests.entrypoints.tiny_tokenizer import make_tokenizer

READY = Ready(300, 4096, 64, 64, 8)
DEADLINE_S = 60.0
LENGTH = 40


class Network:
    """Every connection of one member; cut it, and its calls fail."""

    def __init__(self, world):
        self.world = world
        self.is_cut = False

    def open(self):
        return Connection(self, InProcessBroker(self.world.server, "t", self.world.timing))


class Connection:
    def __init__(self, network, broker):
        self._network = network
        self._broker = broker

    def close(self):
        self._broker.close()

    def __getattr__(self, name):
        method = getattr(self._broker, name)

        def call(*arguments, **keywords):
            if self._network.is_cut:
                raise BrokerUnavailable("cut")
            answer = method(*arguments, **keywords)
            if self._network.is_cut:
                raise BrokerUnavailable("cut while it waited")
            return answer

        return call


class ConnectedEngine(FakeEngine):
    """A fake engine as a worker: its network, and its end of the topic."""

    network: Network
    link: BrokerEngineTopic


class World:
    """A broker in this process, and what is connected to it."""

    def __init__(self, lease_s=0.9):
        self.server = InProcessTopicServer()
        self.timing = Timing(lease_s)
        self.tokenizer = make_tokenizer()
        self._closing = contextlib.ExitStack()

    def worker(self, name, *, step_s=0.002, ready=READY):
        network = Network(self)
        topic = BrokerEngineTopic(network.open, WorkerCard(name), self.timing)
        engine = ConnectedEngine(topic, self.tokenizer, ready)
        engine.network, engine.link = network, topic
        engine.script.reply = lambda submit, choice: [
            (token + choice) % 250 for token in submit.prompt * LENGTH
        ]
        engine.script.step_s = step_s
        engine.start()
        self._closing.callback(topic.close)
        self._closing.callback(engine.stop)
        return engine

    def client(self, **terms):
        client = BrokerTopicClient(Network(self).open, Terms(**terms), self.timing)
        self._closing.callback(client.close)
        return client

    def close(self):
        self._closing.close()


def submit(name, prompt=(5, 6, 7), **params):
    params = {"max_tokens": LENGTH, "seed": 1, "ignore_eos": True, **params}
    return Submit(name, tuple(prompt), SamplingParams(**params))


def expected(command):
    return {
        choice: [(t + choice) % 250 for t in command.prompt * LENGTH][: command.params.max_tokens]
        for choice in range(command.params.n)
    }


async def answers(client, command, *, on_tokens=None):
    """The tokens of each choice; they must be contiguous and end once."""
    stream = await client.submit([command])
    found: dict[int, list[int]] = {choice: [] for choice in range(command.params.n)}
    try:
        async for batch in stream:
            for event in batch:
                assert event.request_id == command.request_id
                assert event.index == len(found[event.choice])
                found[event.choice] += event.tokens
                assert event.finish in (None, FinishReason.LENGTH), event
            if on_tokens is not None:
                on_tokens(sum(map(len, found.values())))
    finally:
        client.release(stream)
    return found


async def until(condition):
    end_s = time.monotonic() + DEADLINE_S / 2
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        await asyncio.sleep(0.01)
