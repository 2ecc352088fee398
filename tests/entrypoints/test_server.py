# SPDX-License-Identifier: Apache-2.0
"""A server's life as its owner sees it: processes, signals, exit codes, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fdspec.core import ConfigError
from fdspec.entrypoints.listener import bind_listener
from fdspec.entrypoints.template_file import read_chat_template
from tests.entrypoints.sse import joined_text, read_events
from tests.entrypoints.tiny_tokenizer import save_tokenizer
from tests.entrypoints.waiting import DEADLINE_S, wait_until

SCRIPT = Path(__file__).with_name("fake_engine_process.py")
ROOT = Path(__file__).parents[2]
ENDLESS = {"prompt": "ab", "max_tokens": 4000, "stream": True}


class Process:
    """A server and what it wrote."""

    def __init__(self, folder: Path, mode: str, *settings: str) -> None:
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        save_tokenizer(folder)
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "serve", str(folder), mode, *settings],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.scratch)},
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        wait_until(lambda: re.search(pattern, self.log) or self._process.poll() is not None)
        match = re.search(pattern, self.log)
        assert match is not None, self.log
        return match

    def http(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.wait_for(r"serving on (http://\S+)")[1], timeout=DEADLINE_S
        )

    def engine_pid(self) -> int:
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; nothing may be left behind."""
        status = self._process.wait(DEADLINE_S)
        self._reader.join()
        return status

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()


@contextlib.contextmanager
def running(folder: Path, mode: str, *settings: str) -> Iterator[Process]:
    process = Process(folder, mode, *settings)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_an_idle_server(tmp_path, number):
    with running(tmp_path, "echo", 'api_key="secret"') as process:
        with process.http() as http:
            assert http.get("/health").status_code == 200
            body = {"prompt": "ab", "max_tokens": 5}
            assert http.post("/v1/completions", json=body).status_code == 401
            headers = {"Authorization": "Bearer secret"}
            answer = http.post("/v1/completions", json=body, headers=headers).json()
        assert answer["choices"][0]["text"] == "ababa"
        engine = process.engine_pid()
        process.send(number)
        assert process.end() == 0
    assert "fake engine stopped" in process.log
    assert ", 0 keys" in process.log, "the engine never sees the API keys"
    assert "Traceback" not in process.log
    assert not Path(f"/proc/{engine}").exists()
    assert list(process.scratch.iterdir()) == []


def test_running_requests_get_time_to_finish(tmp_path):
    with running(tmp_path, "echo", "timeout_graceful_shutdown=30") as process:
        with process.http() as http:
            body = {**ENDLESS, "max_tokens": 100}
            with http.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()
                first = next(lines)
                process.send(signal.SIGTERM)
                *events, done = read_events([first, *lines])
            with pytest.raises(httpx.ConnectError):
                httpx.get(http.base_url)
        assert process.end() == 0
    assert done == "[DONE]"
    assert joined_text(events) == "ab" * 50


@pytest.mark.parametrize("how", ["time is up", "second signal"])
def test_a_whole_answer_that_takes_too_long_is_a_plain_error(tmp_path, how):
    drain_s = 0 if how == "time is up" else 600
    with running(tmp_path, "echo", f"timeout_graceful_shutdown={drain_s}") as process:
        body = {**ENDLESS, "stream": False}
        with process.http() as http, ThreadPoolExecutor(1) as pool:
            answer = pool.submit(http.post, "/v1/completions", json=body)
            wait_until(lambda: http.get("/load").json()["server_load"] == 1)
            process.send(signal.SIGTERM)
            if how == "second signal":
                process.wait_for("stopping: 1 running requests get 600 s")
                process.send(signal.SIGTERM)
            response = answer.result()
        assert process.end() == 0
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert "Traceback" not in process.log


@pytest.mark.parametrize("how", ["time is up", "second signal"])
def test_requests_that_take_too_long_end_with_an_error(tmp_path, how):
    drain_s = 0 if how == "time is up" else 600
    with running(tmp_path, "echo", f"timeout_graceful_shutdown={drain_s}") as process:
        with (
            process.http() as http,
            http.stream("POST", "/v1/completions", json=ENDLESS) as response,
        ):
            lines = response.iter_lines()
            first = next(lines)
            process.send(signal.SIGTERM)
            if how == "second signal":
                process.wait_for("stopping: 1 running requests get 600 s")
                process.send(signal.SIGTERM)
            *_, error, done = read_events([first, *lines])
        assert process.end() == 0
    assert done == "[DONE]"
    assert error["error"]["code"] == "shutting_down"
    assert "Traceback" not in process.log


@pytest.mark.parametrize("how", ["crash", "kill"])
def test_the_server_ends_with_its_engine(tmp_path, how):
    with running(tmp_path, "echo") as process:
        with (
            process.http() as http,
            http.stream("POST", "/v1/completions", json=ENDLESS) as response,
        ):
            lines = response.iter_lines()
            first = next(lines)
            if how == "kill":
                os.kill(process.engine_pid(), signal.SIGKILL)
            else:
                crash = http.post("/v1/completions", json={"prompt": "crash"})
                assert crash.status_code == 500
                assert "exit status 3" in crash.json()["error"]["message"]
            *_, error, done = read_events([first, *lines])
        assert process.end() == 1
    assert done == "[DONE]"
    assert error["error"]["code"] == "engine_dead"
    expected = "ended by SIGKILL" if how == "kill" else "exit status 3"
    assert re.search(f"ERROR .*the engine has ended.*{expected}", process.log)
    if how == "crash":
        assert re.search(r"ERROR .*engine: boom: the last line", process.log)
    assert "Traceback" not in process.log
    assert list(process.scratch.iterdir()) == []


def test_the_engine_ends_with_its_server(tmp_path):
    with running(tmp_path, "echo") as process:
        with process.http() as http:
            http.get("/health")
        engine = process.engine_pid()
        process.send(signal.SIGKILL)
        process.end()
        wait_until(lambda: not Path(f"/proc/{engine}").exists())


def test_an_engine_that_refuses_its_model(tmp_path):
    with running(tmp_path, "refuse") as process:
        assert process.end() == 1
    assert re.search(r"ERROR .*could not start: tensor x has the wrong shape", process.log)
    assert "Traceback" not in process.log
    assert list(process.scratch.iterdir()) == []


def test_an_engine_that_takes_too_long(tmp_path):
    with running(tmp_path, "hang", "engine_start_timeout=1") as process:
        assert process.end() == 1
    # Whether the engine had come far enough to log its own end depends on the machine.
    assert "not ready after 1 s (engine_start_timeout)" in process.log
    assert list(process.scratch.iterdir()) == []


def test_a_signal_while_starting(tmp_path):
    with running(tmp_path, "hang") as process:
        process.wait_for("fake engine for")
        process.send(signal.SIGTERM)
        assert process.end() == 0
    assert "fake engine stopped" in process.log
    assert list(process.scratch.iterdir()) == []


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with running(tmp_path, "echo", f"port={port}") as process:
            assert process.end() == 1
    assert f"cannot listen on 127.0.0.1:{port}" in process.log
    assert "fake engine" not in process.log


def test_a_model_without_tokenizer(tmp_path):
    with running(tmp_path, "echo", 'tokenizer="."') as process:
        assert process.end() == 1
    assert re.search(r"ERROR .*could not start: .*no tokenizer.json", process.log)
    assert "Traceback" not in process.log


def test_listeners_say_that_they_are_tcp():
    """Otherwise asyncio leaves Nagle's delay on, and each token may wait 40 ms."""
    with bind_listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_chat_template_by_file_or_text(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert read_chat_template(str(file)) == "{{ messages }}"
    assert read_chat_template("{{ bos_token }}") == "{{ bos_token }}"
    assert read_chat_template(None) is None
    with pytest.raises(ConfigError, match=r"nothing\.jinja.* is neither a file nor a template"):
        read_chat_template(str(tmp_path / "nothing.jinja"))
