# SPDX-License-Identifier: Apache-2.0
"""Brokers that stop, come back with or without their data, and let only those in who may."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import redis
import zmq

from fdspec.config.broker_address import parse_address
from fdspec.core import ConfigError
from fdspec.scheduler.broker.connecting import connect
from fdspec.scheduler.broker.interface import BrokerRefused, BrokerUnavailable
from fdspec.scheduler.broker.values import EmitOutcome, LeaseState, SubmitOutcome, Timing
from fdspec.scheduler.broker.zmq_server import ZmqServer
from tests.scheduler.topic_conformance.members import Frontend, Topic, Worker, eventually
from tests.scheduler.topic_conformance.services import (
    KEEP_DATA,
    SERVICES,
    RedisService,
    ZmqService,
    choose_port,
)


@pytest.fixture
def folder():
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(folder):
    services = []

    def run(kind):
        services.append(SERVICES[kind](folder))
        return services[-1]

    yield run
    for service in services:
        service.stop()


def patiently(act):
    """The answer of a broker that is on its way back."""

    def attempt():
        try:
            return [act()]
        except BrokerUnavailable:
            return []

    return eventually(attempt, bool)[0]


@pytest.mark.parametrize("kind", SERVICES)
def test_a_broker_that_comes_back_empty(start, kind):
    """Workers are fenced; frontends hear that they are new and go on from what they have."""
    topic = Topic(start(kind), "t")
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    frontend.submit("waits")
    ref = worker.one().ref
    worker.emit(ref, 0, 1)
    worker.emit(ref, 1, 2)
    assert len(frontend.collect()) == 2
    topic.service.restart(keep_data=False)
    assert patiently(lambda: worker.renew(ref)) == [LeaseState.LOST]
    assert worker.emit(ref, 2, 3) is EmitOutcome.FENCED
    assert worker.lease(5) == []
    collected = patiently(frontend.collect_all)
    assert collected.is_new and collected.results == ()
    assert frontend.submit("a", attempt=1, emitted=((1, 2),)) is SubmitOutcome.QUEUED
    frontend.submit("waits", attempt=1)
    first, second = worker.lease(5)
    assert (first.ref.request_id, first.emitted) == ("a", ((1, 2),))
    assert second.ref.request_id == "waits"
    assert worker.emit(first.ref, 2, 3, last=True) is EmitOutcome.ACCEPTED
    assert [result.payload for result in frontend.collect()] == [b"0:2:(3,)"]
    topic.close()


@pytest.mark.parametrize("kind", KEEP_DATA)
def test_a_broker_that_comes_back_with_its_data(start, kind):
    topic = Topic(start(kind), "t")
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    frontend.submit("waits")
    ref = worker.one().ref
    worker.emit(ref, 0, 1)
    topic.service.restart(keep_data=True)
    assert patiently(lambda: worker.renew(ref)) == [LeaseState.HELD]
    assert worker.emit(ref, 0, 1) is EmitOutcome.DUPLICATE
    assert worker.emit(ref, 1, 2, last=True) is EmitOutcome.ACCEPTED
    collected = patiently(frontend.collect_all)
    assert not collected.is_new
    assert [result.payload for result in collected.results] == [b"0:0:(1,)", b"0:1:(2,)"]
    assert [lease.ref.request_id for lease in worker.lease(5)] == ["waits"]
    topic.close()


@pytest.mark.parametrize("kind", SERVICES)
def test_a_broker_that_is_gone(start, kind):
    topic = Topic(start(kind), "t")
    frontend, worker = topic.frontend(), topic.worker()
    topic.service.stop()
    for call in (
        lambda: frontend.submit("a"),
        lambda: worker.lease(1, wait_s=0.1),
        worker.renew,
        frontend.collect_all,
        worker.broker.stats,
        lambda: frontend.broker.cancel("a"),
    ):
        with pytest.raises(BrokerUnavailable):
            call()
    topic.service.restart(keep_data=False)
    assert patiently(lambda: frontend.submit("a")) is SubmitOutcome.QUEUED
    topic.close()


@pytest.mark.parametrize("kind", ["valkey", "redis-6.2"])
def test_a_wrong_password(start, kind):
    service = start(kind)
    assert isinstance(service, RedisService)
    redis.Redis.from_url(service.server.url).config_set("requirepass", "right#@:/")
    good = connect(parse_address(service.server.url, password="right#@:/"), "t", Timing())
    assert good.stats().num_leased == 0
    for password in (None, "secret-but-wrong"):
        bad = connect(parse_address(service.server.url, password=password), "t", Timing())
        with pytest.raises(BrokerRefused, match="scheduler_password") as caught:
            bad.stats()
        assert "secret-but-wrong" not in str(caught.value)
        assert "secret-but-wrong" not in repr(bad) + repr(bad.__dict__.get("_address"))


def test_a_server_that_drops_keys_stops_nobody(start):
    """It must not, but one that is told to evict does."""
    service = start("valkey")
    topic = Topic(service, "t")
    frontend, worker = topic.frontend(), topic.worker()
    for name in "abc":
        frontend.submit(name)
    client = redis.Redis.from_url(service.server.url)
    client.delete("fd:{t}:m:a")
    first, second = worker.lease(5)
    assert [first.ref.request_id, second.ref.request_id] == ["b", "c"]
    client.delete("fd:{t}:m:b", "fd:{t}:t:0:c", "fd:{t}:bell:mixed", "fd:{t}:cards")
    assert worker.emit(first.ref, 0, 1) is EmitOutcome.FENCED
    worker.broker.nack([first.ref, second.ref])
    frontend.broker.cancel("b")
    assert [lease.ref.request_id for lease in worker.lease(5)] == ["c"]
    assert worker.broker.stats().num_waiting == (0, 0)
    topic.close()


def test_a_user_of_one_topic(start):
    """An access list on the topic's prefix is enough, and keeps others out."""
    service = start("redis-6.2")
    admin = redis.Redis.from_url(service.server.url)
    admin.execute_command(
        *("ACL", "SETUSER", "one", "on", ">pw", "~fd:{mine}:*", "+@all", "-@dangerous", "-@admin")
    )
    url = service.server.url.replace("unix://", "unix://one@")
    address = parse_address(url, password="pw")
    frontend = Frontend(connect(address, "mine", Timing()), "f")
    worker = Worker(connect(address, "mine", Timing()), "w")
    frontend.submit("a")
    assert worker.emit(worker.lease(1, wait_s=0.1)[0].ref, 0, 1, last=True) is EmitOutcome.ACCEPTED
    assert len(frontend.collect(0.1)) == 1
    with pytest.raises(BrokerRefused):
        connect(address, "other", Timing()).stats()


def test_a_wrong_key(folder):
    url = f"zmq+tcp://127.0.0.1:{choose_port()}"
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    service = ZmqService(folder / "a", url, with_keys=True)
    stranger = ZmqService(folder / "b", f"zmq+ipc://{folder}/s", with_keys=True)
    try:
        assert service.connect("t").stats().num_leased == 0
        keys = folder / "b" / "keys" / "member"
        shutil.copy(folder / "a" / "keys" / "member" / "broker.key", keys / "broker.key")
        address = parse_address(url, curve_keys=str(keys))
        with pytest.raises(BrokerRefused, match="scheduler_curve_keys"):
            connect(address, "t", Timing(), connect_s=1.0).stats()
        with pytest.raises((BrokerRefused, BrokerUnavailable)):
            connect(parse_address(url), "t", Timing(), connect_s=0.3).stats()
    finally:
        service.stop()
        stranger.stop()


def test_another_version_is_told(start):
    service = start("zmq-ipc")
    assert isinstance(service, ZmqService)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(service.address.url.removeprefix("zmq+"))
        for frames, words in [
            ([b"\x01" + bytes(8), b"stats", b"t", b"\xc0"], b"speaks version 3, the member"),
            ([b"hello"], b"no call of one of its members"),
            ([b"\x03" + bytes(8), b"steal", b"t", b"\xc0"], b"malformed call"),
            ([b"\x03" + bytes(8), b"submit", b"t", b"\x93\x01"], b"malformed call"),
        ]:
            dealer.send_multipart(frames)
            assert dealer.poll(5000)
            assert words in dealer.recv_multipart()[-1]
    assert service.connect("t").stats().num_leased == 0


def test_a_broker_on_ipv6(folder):
    with contextlib.closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback address")
    service = ZmqService(folder, f"zmq+tcp://[::1]:{choose_port()}")
    try:
        assert service.connect("t").stats().num_leased == 0
    finally:
        service.stop()


def test_two_brokers_do_not_share_an_address(start, folder):
    start("zmq-ipc")
    with pytest.raises(ConfigError, match="already listening"):
        ZmqServer(parse_address(f"zmq+ipc://{folder}/z"))
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        ZmqServer(parse_address(f"zmq+tcp://0.0.0.0:{choose_port()}"))


def test_an_embedded_server_ends_with_its_parent(folder):
    """Even if that one is killed."""
    code = (
        "import sys, time, pathlib\n"
        "from fdspec.scheduler.broker.embedded import EmbeddedServer\n"
        "print(EmbeddedServer(pathlib.Path(sys.argv[1])).process_id, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "s")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    assert oct((folder / "s").stat().st_mode)[-3:] == "700"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), bool)
