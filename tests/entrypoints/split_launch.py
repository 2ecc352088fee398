# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode as processes under the launcher, with a random model; and their clients."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx

from tests.entrypoints.launched import Launch, alive, client, descendants
from tests.entrypoints.tiny_tokenizer import save_tokenizer
from tests.entrypoints.waiting import DEADLINE_S, wait_until
from tests.models.oracle import make_tiny

LEASE_S = 3.0
FILE = """\
model: {folder}
port: 0
quantization: none
max_model_len: 2048
max_num_seqs: 16
num_gpu_blocks_override: 160
block_size: 64
num_threads: 1
scheduler_lease: {lease_s}
kv_transfer_lease: {lease_s}
kv_transfer_timeout: 5
timeout_graceful_shutdown: 1
speculative_config: {{method: ngram, num_speculative_tokens: 4}}
servers:
  prefill: {{count: {num_prefill}, max_num_batched_tokens: 16}}
  decode: {{count: {num_decode}}}
  frontend: {{}}
supervision: {{restart_delay: 0.1, max_failed_starts: 20}}
"""


def make_model(folder: Path) -> None:
    """A random checkpoint with a tokenizer."""
    make_tiny("llama", folder, vocab_size=300, max_position_embeddings=2048)
    save_tokenizer(folder)


def launch_file(model: Path, *, num_prefill: int, num_decode: int) -> str:
    """The text of a launch's file."""
    counts = {"num_prefill": num_prefill, "num_decode": num_decode}
    return FILE.format(folder=model, lease_s=LEASE_S, **counts)


def body(number: int, *, num_prompt: int = 150, max_tokens: int = 500) -> dict[str, Any]:
    """A request; equal numbers are equal requests, drawn at random or greedy.

    No cache of prefixes knows it, so that it passes through all phases.
    """
    return {
        "prompt": [(7 * i * i + 13 * number + 5) % 250 for i in range(num_prompt)],
        "max_tokens": max_tokens,
        "temperature": 0.0 if number % 2 else 0.8,
        "seed": number,
        "ignore_eos": True,
        "cache_salt": uuid.uuid4().hex,
        "return_token_ids": True,
        "stream": True,
    }


class Stream:
    """A client that reads an answer in a thread."""

    def __init__(self, url: str, request: dict[str, Any]) -> None:
        self.tokens: list[int] = []
        self.error: str | None = None
        self.finish: str | None = None
        self._http = client(url)
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(request,), daemon=True)
        self._thread.start()

    def _run(self, request: dict[str, Any]) -> None:
        try:
            with self._http.stream("POST", "/v1/completions", json=request) as response:
                self._response = response
                if response.status_code != 200:
                    self.error = response.read().decode()
                    return
                for line in response.iter_lines():
                    if not line or line.endswith("[DONE]"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        self.error = event["error"]["message"]
                        return
                    (choice,) = event["choices"]
                    self.tokens += choice["token_ids"]
                    self.finish = choice["finish_reason"]
        except (httpx.HTTPError, OSError) as error:
            self.error = repr(error)

    def wait_for(self, num_tokens: int) -> None:
        wait_until(lambda: len(self.tokens) >= num_tokens or self.error)
        assert self.error is None, self.error

    def result(self) -> list[int]:
        """The whole answer."""
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive(), f"the stream hangs after {len(self.tokens)} tokens"
        assert self.error is None, f"after {len(self.tokens)} tokens: {self.error}"
        assert self.finish == "length", self.finish
        return self.tokens

    def leave(self) -> None:
        """Break the connection."""
        if self._response is not None:
            self._response.close()
        self._http.close()


class SplitLaunch(Launch):
    """Prefill, decode and frontend."""

    def __init__(self, model: Path, scratch: Path, *, num_prefill: int = 1, num_decode: int = 1):
        file = scratch / "launch.yaml"
        file.write_text(launch_file(model, num_prefill=num_prefill, num_decode=num_decode))
        command = [sys.executable, "-m", "fdspec.entrypoints.launch", "--config", str(file)]
        super().__init__(command, scratch)
        self.url = self.wait_ready()
        self._http = client(self.url)
        self._num_workers = num_prefill + num_decode
        self.wait_idle()
        self._num_processes = len(alive(descendants(self.process_id)))
        self._shared_memory = os.listdir("/dev/shm")
        self._num_files = self._open_files()

    def cluster(self) -> dict[str, Any]:
        return dict(self._http.get("/v1/cluster").json())

    def workers(self, role: str) -> list[dict[str, Any]]:
        return [worker for worker in self.cluster()["workers"] if worker["role"] == role]

    def engines(self, role: str) -> list[int]:
        """Processes of a role's engines."""
        return [int(worker["name"].rpartition(":")[2]) for worker in self.workers(role)]

    def holder(self, role: str) -> int:
        """Process of the engine of a role that holds a request, as soon as one does."""
        found: list[int] = []

        def look() -> bool:
            workers = [worker for worker in self.workers(role) if worker["leased"]]
            found[:] = [int(worker["name"].rpartition(":")[2]) for worker in workers]
            return bool(found)

        wait_until(look)
        return found[0]

    def wait_accepted(self, count: int) -> None:
        """Wait until so many requests are at the broker or leased."""

        def look() -> bool:
            cluster = self.cluster()
            return int(cluster["leased"]) + sum(cluster["waiting"].values()) >= count

        wait_until(look)

    def stop(self, role: str) -> list[int]:
        """Stop, without killing them, all engines of a role."""
        engines = self.engines(role)
        for engine in engines:
            os.kill(engine, signal.SIGSTOP)
        return engines

    def broker_pid(self) -> int:
        """Of the embedded broker, a child of the launcher that is no Python."""
        for pid in descendants(self.process_id):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"unixsocket" in command:
                return pid
        raise AssertionError("there is no broker")

    def parent_of(self, engine: int) -> int:
        """Process of an engine's server."""
        status = Path(f"/proc/{engine}/status").read_text()
        return int(re.findall(r"PPid:\s+(\d+)", status)[0])

    def ask(self, number: int, **options: int) -> Stream:
        return Stream(self.url, body(number, **options))

    def wait_idle(self) -> None:
        """All workers are there, hold no request, and have all their blocks."""

        def is_idle() -> bool:
            try:
                cluster = self.cluster()
            except (httpx.HTTPError, ValueError):
                return False
            workers = cluster.get("workers", [])
            return (
                len(workers) == self._num_workers
                and cluster["leased"] == 0
                and not any(cluster["waiting"].values())
                and all(worker["free_blocks"] == worker["blocks"] for worker in workers)
                and all(worker["running"] == worker["leased"] == 0 for worker in workers)
            )

        wait_until(is_idle)

    def _open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process_id}/fd"))

    def check_nothing_left(self) -> None:
        """As after the start."""
        self.wait_idle()
        wait_until(lambda: len(alive(descendants(self.process_id))) == self._num_processes)
        wait_until(lambda: self._open_files() == self._num_files)
        assert os.listdir("/dev/shm") == self._shared_memory
        assert "Traceback" not in self.log, self.log

    def __exit__(self, *arguments: object) -> None:
        self._http.close()
        super().__exit__(*arguments)
