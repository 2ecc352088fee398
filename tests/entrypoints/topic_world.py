# SPDX-License-Identifier: Apache-2.0
"""A broker, servers on its topic, and clients that read streams, for the tests of shared topics.

The engines are fakes that repeat the prompt, so that an answer is known beforehand.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from fdspec.entrypoints import cluster
from tests.entrypoints.sse import DONE
from tests.entrypoints.test_server import ROOT, Process
from tests.entrypoints.waiting import DEADLINE_S, wait_until

LENGTH = 120
BODY = {"prompt": "abc", "max_tokens": LENGTH, "stream": True}
TEXT = ("abc" * LENGTH)[:LENGTH]


class Broker:
    """A broker's process."""

    def __init__(self, url: str, *flags: str) -> None:
        self.url = url
        self._command = [sys.executable, "-m", "fdspec.entrypoints.broker", "--listen", url, *flags]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "listening on" in line, line

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


class World:
    """A broker and the servers on its topic."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.broker = Broker(url)
        self._servers: list[Process] = []

    def server(self, **options: object) -> Process:
        folder = self.folder / f"s{len(self._servers)}"
        folder.mkdir()
        options = {
            "scheduler_name": "global",
            "scheduler_url": self.broker.url,
            "scheduler_lease": 3.0,
            **options,
        }
        settings = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        self._servers.append(Process(folder, "echo", *settings))
        return self._servers[-1]

    def frontend(self, **options: object) -> Process:
        return self.server(splitwise_role="frontend", **options)

    def status(self, *flags: str) -> int:
        return cluster.main(["status", "--scheduler-url", self.broker.url, *flags])

    def close(self) -> None:
        for server in self._servers:
            server.kill()
        if self.broker.process.poll() is None:
            self.broker.end(signal.SIGTERM)


class Reader:
    """A client that reads one stream in a thread."""

    def __init__(self, server: Process, body: dict[str, object]) -> None:
        self.texts: list[str] = []
        self.error: str | None = None
        self.finish: str | None = None
        self._http = server.http()
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()

    def _run(self, body: dict[str, object]) -> None:
        try:
            with self._http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    self.error = response.read().decode()
                    return
                for line in response.iter_lines():
                    if not line or line == f"data: {DONE}":
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        self.error = event["error"]["message"]
                        return
                    self.texts.append(event["choices"][0]["text"])
                    self.finish = event["choices"][0]["finish_reason"]
        except httpx.HTTPError as error:
            self.error = repr(error)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def wait_for(self, num_tokens: int) -> None:
        wait_until(lambda: len(self.text) >= num_tokens or self.error)
        assert self.error is None

    def check(self) -> None:
        """The whole answer, each token once."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive() and self.error is None, self.error
        assert (self.text, self.finish) == (TEXT, "length")

    def close(self) -> None:
        self._http.close()


def leased(world: World, capsys) -> dict[str, int]:
    """Requests that each worker holds, by the id of its engine's process."""
    capsys.readouterr()
    assert world.status("--json") == 0
    workers = json.loads(capsys.readouterr().out)["workers"]
    return {worker["name"].rpartition(":")[2]: worker["leased"] for worker in workers}


def holder(world: World, capsys) -> int:
    """Process of the engine that computes the one request there is."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [int(pid) for pid, count in leased(world, capsys).items() if count]
        return len(found) == 1

    wait_until(look)
    return found[0]
