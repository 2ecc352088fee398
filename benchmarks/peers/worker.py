# SPDX-License-Identifier: Apache-2.0
"""Peers that are Python packages: a child process that answers worker_loop's requests."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.datasets import text_slices
from benchmarks.peers.base import InProcessPeer, PeerError

ROOT = Path(__file__).resolve().parents[2]
_LOG_LINES = 20


class WorkerPeer(InProcessPeer):
    """Measures a worker with slices of a text, a fresh one for every prompt.

    Args:
        name: in tables.
        command: program and arguments of the worker; it runs in the project's root.
        tokens: of the text that prompts are cut from.
    """

    def __init__(self, name: str, command: Sequence[str], tokens: Sequence[int]) -> None:
        self.name = name
        self._command = command
        self._tokens = tokens
        self._num_calls = 0
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    def start(self) -> None:
        """Start the worker and wait until its model is loaded; then warm up."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close
        try:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            raise PeerError(f"{self.name}: cannot run {self._command[0]} ({error})") from None
        self._read()
        self._generate(1, 64, 4)

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def prefill_rate(self, num_tokens: int) -> float:
        """See InProcessPeer; with one output token."""
        return num_tokens / self._generate(1, num_tokens, 1)

    def decode_rate(self, context: int, output: int) -> float:
        """See InProcessPeer; the time of the same prompt with one output token is subtracted."""
        self._num_calls += 1
        first_s = self._generate(1, context, 1, seed=self._num_calls)
        all_s = self._generate(1, context, output, seed=self._num_calls)
        return (output - 1) / (all_s - first_s)

    def streams_rate(self, streams: int, context: int, output: int) -> float:
        """See InProcessPeer."""
        return streams * output / self._generate(streams, context, output)

    def _generate(self, count: int, context: int, output: int, seed: int | None = None) -> float:
        """Seconds that the worker took for `count` prompts at once."""
        if seed is None:
            self._num_calls += 1
            seed = self._num_calls
        prompts = text_slices(self._tokens, count, context, output, seed)
        assert self._process is not None and self._process.stdin is not None
        request = {"prompts": [prompt.content for prompt in prompts], "max_tokens": output}
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._fail()
        answer = self._read()
        if answer["num_output"] != count * output:
            raise PeerError(
                f"{self.name}: asked for {count * output} tokens, got {answer['num_output']}"
            )
        return float(answer["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fail(self) -> None:
        assert self._process is not None and self._log is not None
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
        command = " ".join(self._command)
        raise PeerError("\n".join([f"{self.name}: ended with {status}: {command}", *lines]))
