# SPDX-License-Identifier: Apache-2.0
"""Adapters and rounds of bench_peers, with stand-ins for the peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench_peers
from benchmarks.peers.base import InProcessPeer, PeerError, Sizes
from benchmarks.peers.llama_cpp import LlamaBenchPeer, run
from benchmarks.peers.rounds import Records, in_process_round
from benchmarks.peers.served import tree_memory_bytes
from benchmarks.peers.worker import WorkerPeer
from benchmarks.report import Spread
from tests.benchmarks.fake_openai import fake_openai

TOKENS = list(range(5000))
# Claims 1 ms for each prompt token and 10 ms for each output token; writes down its requests.
WORKER = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    with open(sys.argv[1], "a") as file:
        file.write(line)
    if request["max_tokens"] == 666:
        sys.exit("not today")
    prompts, count = request["prompts"], request["max_tokens"]
    seconds = 0.001 * sum(map(len, prompts)) + 0.01 * count
    print(json.dumps({"seconds": seconds, "num_output": len(prompts) * count}), flush=True)
"""
LLAMA = """#!/bin/sh
echo "$@" >> {log}
case "$0" in
*batched*) echo noise; echo '{{"pl": 4, "t": 2.0}}' ;;
*) echo '[{{"avg_ts": 123.5}}]' ;;
esac
"""


@pytest.fixture
def worker(tmp_path):
    log = tmp_path / "requests.jsonl"
    peer = WorkerPeer("worker", [sys.executable, "-c", WORKER, str(log)], TOKENS)
    peer.start()
    yield peer, log
    peer.close()


def requests(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_rates_follow_from_the_worker_s_times(worker) -> None:
    peer, log = worker
    assert peer.prefill_rate(100) == pytest.approx(100 / 0.11)
    assert peer.decode_rate(20, 11) == pytest.approx(10 / 0.1)
    assert peer.streams_rate(4, 50, 10) == pytest.approx(40 / 0.3)
    _, prefill, first, everything, streams = requests(log)
    assert first["prompts"] == everything["prompts"]
    assert (first["max_tokens"], everything["max_tokens"]) == (1, 11)
    assert [len(prompt) for prompt in streams["prompts"]] == [50] * 4
    assert prefill["prompts"][0][:20] != first["prompts"][0]


def test_a_worker_that_dies_shows_what_it_wrote(worker) -> None:
    peer, _ = worker
    with pytest.raises(PeerError, match=r"worker: ended with 1: (.|\n)*not today"):
        peer.streams_rate(1, 5, 666)


def test_a_worker_that_cannot_start() -> None:
    peer = WorkerPeer("nobody", ["/does/not/exist"], TOKENS)
    with pytest.raises(PeerError, match="nobody: cannot run /does/not/exist"):
        peer.start()
    peer.close()


def test_llama_bench(tmp_path) -> None:
    log, model = tmp_path / "log", tmp_path / "model.Q4_1.gguf"
    model.touch()
    peer = LlamaBenchPeer("llama", tmp_path / "llama-bench", model, 3)
    with pytest.raises(PeerError, match="llama: there is no .*llama-bench"):
        peer.start()
    for name in ("llama-bench", "llama-batched-bench"):
        (tmp_path / name).write_text(LLAMA.format(log=log))
        (tmp_path / name).chmod(0o755)
    peer.start()
    assert peer.prefill_rate(512) == 123.5
    assert peer.decode_rate(128, 64) == 123.5
    assert peer.streams_rate(4, 100, 50) == 4 * 50 / 2.0
    prefill, decode, streams = log.read_text().splitlines()
    assert "-t 3" in prefill and "-p 512 -n 0" in prefill
    assert "-p 0 -n 64 -d 128" in decode
    assert "-c 600 -npp 100 -ntg 50 -npl 4" in streams


def test_a_program_that_hangs_is_ended(tmp_path) -> None:
    with pytest.raises(PeerError, match="llama: sleep 60 took more than 0 s"):
        run("llama", ["sleep", "60"], timeout_s=0.1)


def test_a_program_that_fails_shows_what_it_wrote() -> None:
    with pytest.raises(PeerError, match=r"llama: sh -c .* ended with 3\n(.|\n)*no model"):
        run("llama", ["sh", "-c", "echo no model >&2; exit 3"])


class Constant(InProcessPeer):
    def __init__(self, name: str, rate: float, log: list[str]) -> None:
        self.name, self.rate, self.log = name, rate, log

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def prefill_rate(self, num_tokens: int) -> float:
        self.log.append(self.name)
        return self.rate * num_tokens

    def decode_rate(self, context: int, output: int) -> float:
        return self.rate

    def streams_rate(self, streams: int, context: int, output: int) -> float:
        return self.rate * streams


def test_rounds_alternate_and_ratios_are_taken_round_by_round() -> None:
    order: list[str] = []
    peers = [Constant("fdspec", 6.0, order), Constant("other", 2.0, order)]
    records = Records()
    sizes = Sizes(prefill=(10,), streams=(2, 4))
    in_process_round(peers, sizes, records, 0)
    peers[1].rate = 3.0
    in_process_round(peers, sizes, records, 1)
    assert order == ["fdspec", "other", "other", "fdspec"]
    summary = records.summary("fdspec")
    assert summary["prefill 10, tokens/s"]["other"]["values"] == [20.0, 30.0]
    assert summary["4 streams, output tokens/s"]["other"]["fdspec_ratio"] == Spread(2.5, 2.0, 3.0)
    assert "fdspec_ratio" not in summary["decode 128 after 128, tokens/s"]["fdspec"]


def test_memory_counts_descendants() -> None:
    """Twice 40 MB that nobody shares, in a child and a grandchild with groups of their own."""
    hold = "import sys; x = bytearray(b'x') * 40_000_000; print(flush=True); sys.stdin.read()"
    spawn = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {hold!r}], start_new_session=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", spawn + hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        for _ in range(2):
            child.stdout.readline()
        assert 80e6 < tree_memory_bytes(child.pid) < 160e6
        assert tree_memory_bytes(os.getpid()) > tree_memory_bytes(child.pid)
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


def test_a_server_that_runs_already(tmp_path, smollm2_path) -> None:
    output = tmp_path / "peers.json"
    options = ["--no-fdspec", "--only", "http", "--rounds", "2", "--concurrency", "2"]
    options += ["--context", "9", "--output-len", "3", "--output", str(output)]
    with fake_openai() as server:
        bench_peers.main([*options, "--vllm", server.url])
        load = [body for body in server.bodies if body["max_tokens"] == 3]
        assert len(load) == 2 * 4
        assert all(len(body["prompt"]) == 9 and body["ignore_eos"] for body in load)
        # No round repeats a prompt of another.
        assert len({tuple(body["prompt"]) for body in server.bodies}) == len(server.bodies)
    figures = json.loads(output.read_text())["figures"]
    assert len(figures["HTTP, 2 at once: output tokens/s"][server.url]["values"]) == 2
    assert "memory of all processes (PSS), MiB" not in figures


def test_a_failing_peer_ends_with_its_message(tmp_path, smollm2_path) -> None:
    options = ["--no-fdspec", "--only", "in-process", "--llama-bench", str(tmp_path / "none")]
    with pytest.raises(SystemExit, match="error: llama.cpp Q4_1: there is no"):
        bench_peers.main(options)
