# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: llama-bench and, from the same folder, llama-batched-bench; and llama-server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.base import InProcessPeer, PeerError

# Loading the model and the warm-up are outside what these programs time, but count here.
_TIMEOUT_S = 600.0


class LlamaBenchPeer(InProcessPeer):
    """Every figure is one call of a benchmark program of llama.cpp, on tokens of its own.

    Args:
        name: in tables.
        llama_bench: path of llama-bench.
        model: GGUF file.
        threads: CPU threads.
    """

    def __init__(self, name: str, llama_bench: Path, model: Path, threads: int) -> None:
        self.name = name
        self._llama_bench = llama_bench
        self._model = model
        self._threads = threads

    def start(self) -> None:
        """Check that the programs and the model exist."""
        for path in (self._llama_bench, self._batched_bench, self._model):
            if not path.is_file():
                raise PeerError(f"{self.name}: there is no {path}")

    def close(self) -> None:
        """Nothing runs between figures."""

    def prefill_rate(self, num_tokens: int) -> float:
        """See InProcessPeer."""
        return self._llama_bench_rate(["-p", str(num_tokens), "-n", "0"])

    def decode_rate(self, context: int, output: int) -> float:
        """See InProcessPeer."""
        return self._llama_bench_rate(["-p", "0", "-n", str(output), "-d", str(context)])

    def streams_rate(self, streams: int, context: int, output: int) -> float:
        """See InProcessPeer."""
        threads = str(self._threads)
        cells = streams * (context + output)
        command = [str(self._batched_bench), "-m", str(self._model), "-t", threads, "-tb", threads]
        command += ["-c", str(cells), "-npp", str(context), "-ntg", str(output)]
        command += ["-npl", str(streams), "--output-format", "jsonl"]
        lines = [line for line in run(self.name, command).splitlines() if line.startswith("{")]
        if len(lines) != 1:
            raise PeerError(f"{self.name}: expected one line of JSON from {' '.join(command)}")
        return streams * output / float(json.loads(lines[0])["t"])

    @property
    def _batched_bench(self) -> Path:
        return self._llama_bench.with_name("llama-batched-bench")

    def _llama_bench_rate(self, arguments: Sequence[str]) -> float:
        command = [str(self._llama_bench), "-m", str(self._model), "-t", str(self._threads)]
        command += ["-r", "1", "-o", "json", *arguments]
        (entry,) = json.loads(run(self.name, command))
        return float(entry["avg_ts"])


def run(name: str, command: Sequence[str], timeout_s: float = _TIMEOUT_S) -> str:
    """Standard output of a program.

    Raises:
        PeerError: it failed, or took too long; the message has the end of what it wrote.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{name}: {' '.join(command)} took more than {timeout_s:.0f} s") from None
    if result.returncode != 0:
        tail = (result.stdout + result.stderr)[-2000:]
        raise PeerError(f"{name}: {' '.join(command)} ended with {result.returncode}\n{tail}")
    return result.stdout


def server_command(
    llama_server: Path, model: Path, threads: int, max_streams: int, max_model_len: int
) -> list[str]:
    """Command line of a llama-server without its port; no cache answers a repeated prompt."""
    command = [str(llama_server), "-m", str(model), "--host", "127.0.0.1"]
    command += ["-t", str(threads), "-tb", str(threads), "--metrics", "--no-webui"]
    command += ["-np", str(max_streams), "-c", str(max_streams * max_model_len)]
    return [*command, "--cache-ram", "0"]
