# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode as processes that are killed, stopped and drained in every phase of a request.

A client sees the tokens of an undisturbed run, each once, only later; afterwards every block is
free, and nothing is left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import soak
from tests.entrypoints.launched import alive
from tests.entrypoints.split_launch import LEASE_S, SplitLaunch, Stream, launch_file, make_model
from tests.entrypoints.waiting import wait_until

LONG = 1900
"""Tokens of a prompt that takes many steps of prefill."""


class World:
    """A launch, and what it answered when nothing was disturbed."""

    def __init__(self, launch: SplitLaunch) -> None:
        self.launch = launch
        self.expected = [launch.ask(number).result() for number in range(2)]
        self.expected_long = launch.ask(9, num_prompt=LONG, max_tokens=40).result()

    def long(self) -> Stream:
        return self.launch.ask(9, num_prompt=LONG, max_tokens=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def small(model, tmp_path_factory) -> Iterator[World]:
    """One prefill and one decode server."""
    with SplitLaunch(model, tmp_path_factory.mktemp("small")) as launch:
        yield World(launch)


@pytest.fixture(scope="module")
def large(model, tmp_path_factory) -> Iterator[World]:
    """Two of each."""
    scratch = tmp_path_factory.mktemp("large")
    with SplitLaunch(model, scratch, num_prefill=2, num_decode=2) as launch:
        yield World(launch)


def test_decode_is_killed(small):
    launch = small.launch
    streams = [launch.ask(number) for number in range(2)]
    for stream in streams:
        stream.wait_for(random.Random(5).randrange(20, 200))
    os.kill(launch.holder("decode"), signal.SIGKILL)
    assert [stream.result() for stream in streams] == small.expected
    launch.check_nothing_left()


@pytest.mark.full
def test_prefill_is_killed_while_it_computes(small):
    launch = small.launch
    stream = small.long()
    os.kill(launch.holder("prefill"), signal.SIGKILL)
    assert stream.result() == small.expected_long
    launch.check_nothing_left()


def test_prefill_is_killed_between_its_first_token_and_the_handoff(small):
    launch = small.launch
    stopped = launch.stop("decode")
    stream = launch.ask(0)
    stream.wait_for(1)
    os.kill(launch.engines("prefill")[0], signal.SIGKILL)
    for engine in stopped:
        os.kill(engine, signal.SIGCONT)
    assert stream.result() == small.expected[0]
    launch.check_nothing_left()


@pytest.mark.full
def test_prefill_is_killed_before_it_takes_the_request(small):
    launch = small.launch
    (stopped,) = launch.stop("prefill")
    stream = launch.ask(1)
    wait_until(lambda: any(launch.cluster()["waiting"].values()))
    os.kill(stopped, signal.SIGKILL)
    assert stream.result() == small.expected[1]
    launch.check_nothing_left()


@pytest.mark.full
def test_prefill_is_killed_after_the_handoff(small):
    launch = small.launch
    stream = launch.ask(1)
    stream.wait_for(20)
    os.kill(launch.engines("prefill")[0], signal.SIGKILL)
    assert stream.result() == small.expected[1]
    launch.check_nothing_left()


@pytest.mark.full
@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_an_engine_is_stopped_and_goes_on_after_its_lease(large, role):
    """Others compute what it had; what it says afterwards is refused."""
    launch = large.launch
    if role == "decode":
        stream, expected = launch.ask(0), large.expected[0]
        stream.wait_for(20)
    else:
        stream, expected = large.long(), large.expected_long
    engine = launch.holder(role)
    os.kill(engine, signal.SIGSTOP)
    assert stream.result() == expected
    os.kill(engine, signal.SIGCONT)
    launch.check_nothing_left()
    assert engine in launch.engines(role)


@pytest.mark.full
def test_the_only_decode_server_is_stopped_and_goes_on_after_its_lease(small):
    launch = small.launch
    stream = launch.ask(0)
    stream.wait_for(20)
    (engine,) = launch.stop("decode")
    wait_until(lambda: launch.workers("decode") == [])
    time.sleep(LEASE_S)
    os.kill(engine, signal.SIGCONT)
    assert stream.result() == small.expected[0]
    launch.check_nothing_left()


@pytest.mark.full
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_broker_is_killed_and_comes_back_empty(small, phase):
    launch = small.launch
    streams = [small.long(), launch.ask(0)]
    launch.wait_accepted(2)
    if phase == "decode":
        streams[1].wait_for(20)
    os.kill(launch.broker_pid(), signal.SIGKILL)
    assert [stream.result() for stream in streams] == [small.expected_long, small.expected[0]]
    launch.check_nothing_left()


@pytest.mark.full
def test_a_frontend_is_killed(small):
    launch = small.launch
    stream = launch.ask(0, max_tokens=1800)
    stream.wait_for(20)
    os.kill(launch.server_pid("frontend"), signal.SIGKILL)
    wait_until(lambda: stream.error)
    # Its request is cancelled within the lease, and a new frontend is at the same address.
    launch.check_nothing_left()
    assert launch.ask(1).result() == small.expected[1]


@pytest.mark.full
@pytest.mark.parametrize("phase", ["waits", "prefill", "handoff", "decode"])
def test_a_client_leaves(small, phase):
    launch = small.launch
    stopped = []
    if phase in ("waits", "handoff"):
        stopped = launch.stop("prefill" if phase == "waits" else "decode")
    stream = launch.ask(3, num_prompt=LONG, max_tokens=140)
    if phase == "waits":
        wait_until(lambda: any(launch.cluster()["waiting"].values()))
    elif phase == "prefill":
        launch.holder("prefill")
    else:
        stream.wait_for(1 if phase == "handoff" else 10)
    stream.leave()
    for engine in stopped:
        os.kill(engine, signal.SIGCONT)
    launch.check_nothing_left()
    assert launch.ask(1).result() == small.expected[1]


@pytest.mark.full
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sigterm_moves_what_does_not_finish(large, role):
    launch = large.launch
    streams = [launch.ask(0), launch.ask(1), large.long()]
    if role == "decode":
        streams[0].wait_for(20)
    engine = launch.holder(role)
    server = launch.parent_of(engine)
    os.kill(server, signal.SIGTERM)
    expected = [*large.expected, large.expected_long]
    assert [stream.result() for stream in streams] == expected
    wait_until(lambda: alive([server]) == [])
    assert " ended with exit status 0; starting it again" in launch.log
    launch.check_nothing_left()


@pytest.mark.full
def test_nobody_is_there_to_decode(small):
    """A request waits, and goes on when somebody is there."""
    launch = small.launch
    server = launch.parent_of(launch.engines("decode")[0])
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: launch.workers("decode") == [])
    assert launch.ask(0).result() == small.expected[0]
    launch.check_nothing_left()


@pytest.mark.full
def test_a_launch_that_drains_ends_well(model, tmp_path):
    with SplitLaunch(model, tmp_path, num_decode=2) as launch:
        stream = launch.ask(1, max_tokens=30)
        stream.wait_for(1)
        assert launch.end(signal.SIGTERM) == 0
        assert len(stream.result()) == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch.yaml"]
    assert "Traceback" not in launch.log


@pytest.mark.full
@pytest.mark.timeout(600)
def test_workers_are_killed_again_and_again(model, tmp_path):
    file = tmp_path / "launch.yaml"
    file.write_text(launch_file(model, num_prefill=2, num_decode=2))
    output = tmp_path / "soak.json"
    size = ["--requests", "60", "--concurrency", "16", "--kill-every", "3"]
    assert soak.main(["--config", str(file), *size, "--output", str(output)]) == 0
    report = json.loads(output.read_text())
    assert (report["same"], report["lost"]) == (60, 0)
    assert sum(report["killed"].values()) >= 1
