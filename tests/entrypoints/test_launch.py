# SPDX-License-Identifier: Apache-2.0
"""Launches as processes: servers that are killed come back, and all of it ends together."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from fdspec.config.launch import load_launch
from fdspec.entrypoints.launch import __main__ as program
from fdspec.entrypoints.launch.kept_server import GaveUp, KeptServer, PrefixedLines
from fdspec.utils.private_folder import make_private_folder
from tests.entrypoints.launched import alive, client, descendants, fake_launch
from tests.entrypoints.tiny_tokenizer import save_tokenizer
from tests.entrypoints.waiting import wait_until

CPUS = sorted(os.sched_getaffinity(0))
FILE = f"""\
model: {{folder}}
port: 0
scheduler_lease: 3
servers:
  mixed: {{{{cpus: {CPUS[-1]}}}}}
  frontend: {{{{count: 2}}}}
supervision: {{{{restart_delay: 0.1, max_failed_starts: 2}}}}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    save_tokenizer(tmp_path)
    (tmp_path / "launch.yaml").write_text(FILE.format(folder=tmp_path))
    return tmp_path


def ask(http) -> str:
    answer = http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 5})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_a_launch_from_start_to_end(folder):
    """Also: every server that is killed is started again, at the same address."""
    with fake_launch(folder, "echo") as launch:
        url = launch.wait_ready()
        assert "all 3 servers are ready" in launch.log
        with client(url) as http:
            assert ask(http) == "ababa"
        processes = descendants(launch.process_id)
        # Three servers, an engine and a broker.
        assert len(processes) == 5
        launch.wait_for(rf"(mixed +\| processors \[{CPUS[-1]}\])")
        os.kill(launch.server_pid("mixed"), signal.SIGKILL)
        os.kill(launch.server_pid("frontend-1"), signal.SIGKILL)
        launch.wait_for("(mixed is ready)", 2)
        launch.wait_for("(frontend-1 is ready)", 2)
        assert "mixed was ended by SIGKILL; it may" in launch.log
        for _ in range(4):
            with client(url) as http:
                # A frontend that was started again hears of the workers a little later.
                wait_until(lambda: http.get("/health").status_code == 200)
                assert ask(http) == "ababa"
        processes += descendants(launch.process_id)
        assert launch.end(signal.SIGTERM) == 0
        assert re.search(r"launch\[\d+\] \S+supervisor: stopped", launch.log)
    assert alive(processes) == []
    assert list((folder / "tmp").iterdir()) == []
    assert "Traceback" not in launch.log


def test_everything_dies_with_a_launcher_that_is_killed(folder, monkeypatch):
    with fake_launch(folder, "echo") as launch:
        launch.wait_ready()
        processes = descendants(launch.process_id)
        assert len(processes) == 5
        launch.end(signal.SIGKILL)
        wait_until(lambda: alive(processes) == [])
    # What it could not remove goes when the next server, broker or launch starts.
    left = list((folder / "tmp").iterdir())
    assert len(left) == 4
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    mine = make_private_folder()
    assert list((folder / "tmp").iterdir()) == [mine]


def test_a_server_that_does_not_start_ends_the_launch(folder):
    with fake_launch(folder, "refuse") as launch:
        assert launch.end(0) == 1
    said = (
        r"mixed ended with exit status 1 before it was ready 2 times in a row, so the launch ends"
    )
    assert re.search(said, launch.log)
    assert re.search(r"launch\[\d+\] .*:   .*could not start: tensor x has the wrong", launch.log)
    assert launch.log.count("starting it again in 0.1 s") == 1
    assert "Traceback" not in launch.log


@pytest.mark.full
def test_requests_may_finish_and_a_second_signal_hurries(folder):
    body = {"prompt": "ab", "max_tokens": 4000, "stream": True}
    with fake_launch(folder, "echo", "--timeout-graceful-shutdown", "600") as launch:
        with (
            client(launch.wait_ready()) as http,
            http.stream("POST", "/v1/completions", json={**body, "max_tokens": 300}) as short,
            http.stream("POST", "/v1/completions", json=body) as endless,
        ):
            lines = short.iter_lines()
            next(lines)
            launch.send(signal.SIGINT)
            assert list(lines)[-2] == "data: [DONE]"
            # Nobody may connect and wait for an answer that never comes.
            with pytest.raises(httpx.ConnectError), client(str(http.base_url)) as late:
                late.get("/health")
            launch.send(signal.SIGINT)
            assert "shutting_down" in list(endless.iter_lines())[-4]
        assert launch.end(0) == 0
    assert "Traceback" not in launch.log


def kept_server(folder, listener, status):
    """A server that ends at once with a status."""
    plan = load_launch([str(folder / "launch.yaml")])
    command = [sys.executable, "-c", f"raise SystemExit({status})"]
    (server,) = [server for server in plan.servers if server.name == "mixed"]
    return KeptServer(
        server,
        server.config,
        listener,
        supervision=plan.supervision,
        command=command,
        name_width=5,
    )


def test_a_launch_that_ends_does_not_start_again_what_somebody_else_has_ended(folder, caplog):
    async def keep(status):
        with socket.socket() as listener:
            server = kept_server(folder, listener, status)
            server.let_end()
            await server.keep()

    asyncio.run(keep(0))
    assert "starting it again" not in caplog.text
    with pytest.raises(GaveUp, match="exit status 3 before it was ready 2 times in a row"):
        asyncio.run(keep(3))


@pytest.mark.full
def test_a_signal_while_starting(folder):
    with fake_launch(folder, "hang") as launch:
        launch.wait_for("(fake engine for)")
        assert launch.end() == 0
    assert "Traceback" not in launch.log


def test_an_address_that_is_taken(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with fake_launch(folder, "echo", "--port", str(port)) as launch:
            assert launch.end(0) == 1
    assert f"frontend-1 cannot listen on 127.0.0.1:{port}: Address already in use" in launch.log


def test_the_command_line(folder, capsys):
    file = str(folder / "launch.yaml")
    assert program.main(["--help"]) == 0
    assert "max_failed_starts: " in capsys.readouterr().out
    assert program.main(["--version"]) == 0
    assert program.main(["--config", file, "--print-config", "--max-num-seqs", "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("max_num_seqs: 3 ") == 3
    assert "=== frontend-2 ===" in printed and "# default of a launch" in printed
    for words, complaint in (
        ([], "--config FILE is missing"),
        (["--config"], "--config takes the path"),
        (["--config=none.yaml"], "none.yaml: no such file"),
        (["--config", file, "--prot", "1"], "--prot: unknown key; did you mean --port?"),
        (["--config", file, "--config", file], "give a file with `servers` alone"),
    ):
        assert program.main(words) == 2
        assert complaint in capsys.readouterr().err


def test_lines_of_a_server_stay_whole(capsys):
    lines = PrefixedLines("a | ")
    for text in ("one\ntw", "o", "\n\nthree"):
        lines.write(text)
    lines.end()
    assert capsys.readouterr().err == "a | one\na | two\na | \na | three\n"
