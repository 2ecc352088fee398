# SPDX-License-Identifier: Apache-2.0
"""Servers on one topic, as processes that are killed, stopped, restarted and drained."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from fdspec.config import config_from_options
from fdspec.entrypoints import broker, cluster, own_broker
from tests.entrypoints.test_server import Process
from tests.entrypoints.topic_world import BODY, Broker, Reader, World, holder, leased
from tests.entrypoints.waiting import wait_until


@pytest.fixture(params=["unix"])
def world(request) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    scheme = {"unix": "unix", "zmq": "zmq+ipc"}[request.param]
    world = World(folder, f"{scheme}://{folder}/b")
    yield world
    world.close()
    shutil.rmtree(folder)


def test_a_topic_from_start_to_end(world, capsys):
    """Any server takes a request, any worker computes it; a worker that is killed is replaced."""
    first, frontend = world.server(), world.frontend()
    second = world.server()
    with frontend.http() as http:
        assert http.get("/health").status_code == 200
        wait_until(lambda: len(http.get("/v1/cluster").json()["workers"]) == 2)
        readers = [Reader(server, BODY) for server in (frontend, first, second)]
        for reader in readers:
            reader.check()
        reader = Reader(frontend, BODY)
        reader.wait_for(10)
        victim = holder(world, capsys)
        os.kill(victim, signal.SIGKILL)
        reader.check()
        wait_until(lambda: len(http.get("/v1/cluster").json()["workers"]) == 1)
    servers = [s for s in (first, second) if s.is_running()]
    assert world.status() == 0
    assert "mixed" in capsys.readouterr().out
    for server in (*servers[:1], frontend):
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.log
        assert list(server.scratch.iterdir()) == []
    assert world.broker.end(signal.SIGTERM) == 0
    assert not (world.folder / "b").exists()
    assert world.status() == 1


@pytest.mark.full
@pytest.mark.parametrize("world", ["unix", "zmq"], indirect=True)
def test_a_broker_that_is_killed_and_comes_back_empty(world):
    worker, frontend = world.server(), world.frontend()
    readers = [Reader(server, BODY) for server in (worker, frontend, frontend)]
    for reader in readers:
        reader.wait_for(20)
    assert world.broker.end(signal.SIGKILL) != 0
    with frontend.http() as http:
        wait_until(lambda: http.get("/health").status_code == 503)
        answer = http.post("/v1/completions", json={**BODY, "stream": False})
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
    world.broker.start()
    for reader in readers:
        reader.check()
    with frontend.http() as http:
        wait_until(lambda: http.get("/health").status_code == 200)


@pytest.mark.full
@pytest.mark.parametrize("world", ["unix", "zmq"], indirect=True)
def test_a_worker_that_is_stopped_and_goes_on_too_late(world, capsys):
    workers, frontend = [world.server()], world.frontend()
    reader = Reader(frontend, BODY)
    reader.wait_for(10)
    victim = holder(world, capsys)
    os.kill(victim, signal.SIGSTOP)
    workers.append(world.server())
    reader.check()
    with workers[0].http() as http:
        wait_until(lambda: http.get("/health").status_code == 503)
        assert http.get("/health").json()["error"]["code"] == "engine_silent"
        os.kill(victim, signal.SIGCONT)
        wait_until(lambda: http.get("/health").status_code == 200)
    wait_until(lambda: list(leased(world, capsys).values()) == [0, 0])
    assert "fenced" in workers[0].log or "lost" in workers[0].log
    Reader(frontend, BODY).check()


@pytest.mark.full
def test_a_frontend_that_is_killed(world, capsys):
    worker, frontend = world.server(), world.frontend()
    worker.http().close()
    reader = Reader(frontend, {**BODY, "max_tokens": 4000})
    reader.wait_for(10)
    frontend.send(signal.SIGKILL)
    wait_until(lambda: list(leased(world, capsys).values()) == [0])
    assert reader.finish is None
    Reader(worker, BODY).check()


@pytest.mark.full
def test_a_client_that_leaves(world, capsys):
    world.server()
    reader = Reader(world.frontend(), {**BODY, "max_tokens": 4000})
    reader.wait_for(10)
    reader.close()
    wait_until(lambda: list(leased(world, capsys).values()) == [0])


@pytest.mark.full
def test_without_a_worker(world):
    first = world.server()
    impatient = world.frontend(scheduler_ttl=2.0)
    waiting = world.frontend(scheduler_without_worker="wait")
    refusing = world.frontend(scheduler_without_worker="reject")
    with impatient.http(), waiting.http(), refusing.http() as http:
        first.send(signal.SIGTERM)
        assert first.end() == 0
        wait_until(lambda: http.get("/v1/cluster").json()["workers"] == [])
        answer = http.post("/v1/completions", json={**BODY, "stream": False})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_worker"
        late = Reader(impatient, BODY)
        wait_until(lambda: late.error)
        assert "scheduler_ttl" in str(late.error)
        late = Reader(waiting, BODY)
        world.server()
        late.check()


@pytest.mark.full
def test_sigterm_moves_what_does_not_finish(world, capsys):
    first = world.server(timeout_graceful_shutdown=0)
    frontend = world.frontend()
    reader = Reader(frontend, BODY)
    reader.wait_for(10)
    second = world.server()
    second.http().close()
    first.send(signal.SIGTERM)
    assert first.end() == 0
    assert "fake engine stopped" in first.log
    reader.check()


@pytest.mark.full
def test_sigterm_lets_requests_finish(world):
    first = world.server(timeout_graceful_shutdown=30)
    frontend = world.frontend()
    reader = Reader(frontend, BODY)
    reader.wait_for(10)
    first.send(signal.SIGTERM)
    reader.check()
    assert first.end() == 0


@pytest.mark.full
def test_a_full_topic(world):
    frontend = world.frontend(scheduler_max_size=2)
    world.server(scheduler_max_size=2).http().close()
    with contextlib.ExitStack() as stack:
        readers = [Reader(frontend, {**BODY, "max_tokens": 4000, "n": 8}) for _ in range(3)]
        for reader in readers:
            stack.callback(reader.close)
        http = stack.enter_context(frontend.http())
        wait_until(lambda: http.get("/v1/cluster").json()["waiting"]["prefill"] == 2)
        answer = http.post("/v1/completions", json={**BODY, "stream": False})
        assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
        assert "scheduler_max_size" in answer.json()["error"]["message"]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_workers_are_killed_again_and_again(world):
    """Every answer is complete and correct; a supervisor would start the servers again, as here."""
    frontend = world.frontend()
    workers = [world.server(), world.server()]
    source = random.Random(1)
    with frontend.http() as http:
        wait_until(lambda: len(http.get("/v1/cluster").json()["workers"]) == 2)

        def ask(number: int) -> str:
            prompt = f"{number:03d}"
            body = {"prompt": prompt, "max_tokens": 99}
            answer = http.post("/v1/completions", json=body).json()
            assert answer["usage"]["completion_tokens"] == 99
            return str(answer["choices"][0]["text"])

        num_killed = 0
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, number) for number in range(100)]
            while not all(future.done() for future in asked):
                time.sleep(2)
                victim = source.choice(workers)
                with contextlib.suppress(OSError, IndexError):
                    os.kill(victim.engine_pid(), signal.SIGKILL)
                    num_killed += 1
                    assert victim.end() == 1
                    workers.remove(victim)
                    workers.append(world.server())
            for number, future in enumerate(asked):
                assert future.result() == f"{number:03d}" * 33
        assert num_killed >= 2
        wait_until(lambda: http.get("/v1/cluster").json()["leased"] == 0)


@pytest.mark.full
def test_an_embedded_broker_ends_with_its_server(tmp_path):
    process = Process(tmp_path, "echo", 'scheduler_name="global"', 'scheduler_url="embedded"')
    try:
        url = process.wait_for(r"scheduler_url: (unix://\S+)")[1]
        reader = Reader(process, BODY)
        reader.wait_for(10)
        info = redis.Redis.from_url(url).info("server")
        os.kill(int(info["process_id"]), signal.SIGKILL)
        process.wait_for("starting it again")
        reader.check()
        wait_until(lambda: cluster.main(["status", "--scheduler-url", url]) == 0)
        process.send(signal.SIGKILL)
        process.end()
        wait_until(lambda: cluster.main(["status", "--scheduler-url", url]) == 1)
    finally:
        process.kill()
        shutil.rmtree(Path(url.removeprefix("unix://")).parent, ignore_errors=True)


def test_a_broker_that_will_not_have_us(tmp_path):
    """Found before anything is started."""
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    running = Broker(f"unix://{folder}/b")
    try:
        redis.Redis.from_url(running.url).config_set("requirepass", "right")
        settings = ['scheduler_name="global"', f'scheduler_url="{running.url}"']
        settings.append('scheduler_password="wrong-one"')
        process = Process(tmp_path, "echo", *settings)
        assert process.end() == 1
        assert "check scheduler_password" in process.log
        assert "wrong-one" not in process.log
        assert "fake engine" not in process.log
    finally:
        running.end(signal.SIGTERM)
        shutil.rmtree(folder)


def test_without_an_embedded_server_there_is_the_zmq_broker(monkeypatch):
    monkeypatch.setattr(own_broker, "find_server", lambda: None)
    options = {"model": "m", "scheduler_name": "global", "scheduler_url": "embedded"}
    with own_broker.with_broker(config_from_options(options).config) as config:
        path = config.topic.address.path
        assert config.topic.address.scheme == "zmq+ipc" and path is not None
        assert cluster.main(["status", "--scheduler-url", config.topic.address.url]) == 0
    assert not path.parent.exists()


def test_keys_for_a_zmq_broker(tmp_path, capsys):
    assert broker.main(["make-keys", str(tmp_path / "keys")]) == 0
    assert "scheduler_curve_keys" in capsys.readouterr().out
    secrets = list(tmp_path.rglob("*_secret"))
    assert len(secrets) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets)
    assert broker.main(["make-keys", str(tmp_path / "keys")]) == 2
    assert "has keys already" in capsys.readouterr().err
    assert broker.main(["--listen", "zmq+tcp://0.0.0.0:1"]) == 2
    assert "can be reached from other machines" in capsys.readouterr().err
    assert broker.main(["--listen", "foo"]) == 2
    shapes = "--listen must be unix:///PATH, zmq+tcp://HOST:PORT or zmq+ipc:///PATH, got 'foo'"
    assert shapes in capsys.readouterr().err
    assert broker.main(["--listen", "redis://127.0.0.1:6379"]) == 2
    assert "run a Redis or Valkey server" in capsys.readouterr().err
    assert broker.main(["--listen", f"zmq+ipc://{tmp_path}/b", "--curve-keys", "nowhere"]) == 2
    assert "cannot read the key" in capsys.readouterr().err
