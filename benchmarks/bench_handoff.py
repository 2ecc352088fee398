# SPDX-License-Identifier: Apache-2.0
"""What handing a prompt's KV cache from a prefill process to a decode process costs.

A process computes a prompt and offers it; this one takes it over, by each transport, after the last
row or layer by layer while the prompt is still being computed. The cost is the time from the last
row of the prompt to the moment at which decode may use it (checksums compared, lease confirmed),
and its share of the time that the prefill took.

    python -m benchmarks.bench_handoff --output handoff.json --plot handoff.png
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.report import (
    Spread,
    add_report_options,
    load_pyplot,
    machine,
    print_table,
    save_plot,
    write_report,
)
from fdspec.kv.cache import KVCache, KVCacheLayout
from fdspec.transfer import (
    HandoffSink,
    KVLayout,
    PullLimits,
    PullResult,
    SinkOptions,
    TransportOptions,
    decode_offer,
)
from fdspec.utils.child_process import die_with_parent

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
ROOT = Path(__file__).resolve().parents[1]
TRANSPORTS = ("shm", "zmq-tcp")
_LIMITS = PullLimits(deadline_s=600.0, silence_s=30.0)
_POLL_S = 0.0002


@dataclass(frozen=True)
class Handoff:
    """One handoff.

    Attributes:
        prefill_ms: of the prompt.
        cost_ms: from the last row to the end of the handoff.
        gigabytes_per_s: of the whole pull; 0 where it waits for the prefill.
        num_bytes: handed over.
    """

    prefill_ms: float
    cost_ms: float
    gigabytes_per_s: float
    num_bytes: int

    @property
    def share(self) -> float:
        """Per cent of the prefill time."""
        return 100 * self.cost_ms / self.prefill_ms


class PrefillProcess:
    """The process that computes; see handoff_source.py."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        values = {
            **{name: getattr(options, name) for name in ("model", "prompt", "chunk", "block_size")},
            "kv_cache_dtype": options.kv_cache_dtype,
            "threads": options.threads,
            "transports": options.transports,
            "checksums": not options.no_checksums,
            "folder": folder,
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.handoff_source", json.dumps(values)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(),
        )
        self.layout = msgspec.convert(self.hear()["layout"], KVLayout)

    def say(self, **command: object) -> None:
        """Send a command."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            SystemExit: the process has ended; its standard error, which is ours, says why.
        """
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"error: the prefill process ended with status {self._child.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()


class Bench:
    """The decode side: a cache, and a sink for each transport."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self._prefill = PrefillProcess(options, folder)
        layout = self._prefill.layout
        shape = KVCacheLayout(
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            block_size=layout.block_size,
            dtype=layout.kv_cache_dtype,
        )
        num_blocks = -(-options.prompt // layout.block_size)
        self._cache = KVCache(shape, num_blocks)
        self._cache.memory().prefault()
        blocks = list(range(num_blocks))
        random.Random(2).shuffle(blocks)
        self._blocks = tuple(blocks)
        self._sinks = {
            name: HandoffSink(
                self._cache.memory(),
                layout,
                SinkOptions(TransportOptions(Path(folder)), (name,), _LIMITS),
            )
            for name in options.transports
        }

    def hand_over(self, transport: str, *, overlap: bool) -> Handoff:
        """Compute one prompt there, and take it over.

        Raises:
            SystemExit: the handoff failed; says why.
        """
        sink = self._sinks[transport]
        self._prefill.say(overlap=overlap)
        if overlap:
            self._start(sink, self._prefill.hear())
        done = self._prefill.hear()
        if not overlap:
            self._start(sink, done)
        results: list[PullResult] = []
        while not results:
            results = sink.poll()
            time.sleep(_POLL_S)
        end_s = time.monotonic()
        (result,) = results
        if result.outcome != "loaded":
            raise SystemExit(f"error: the handoff by {transport} failed: {result.reason}")
        speed = 0.0 if overlap else result.num_bytes / result.seconds / 1e9
        cost_ms = 1000 * (end_s - done["end_s"])
        return Handoff(1000 * done["prefill_s"], cost_ms, speed, result.num_bytes)

    def _start(self, sink: HandoffSink, said: dict[str, Any]) -> None:
        offer = decode_offer(base64.b64decode(said["offer"]))
        sink.start(offer, self._blocks)

    def close(self) -> None:
        """Stop everything."""
        for sink in self._sinks.values():
            sink.close()
        self._prefill.close()
        self._cache.close()


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every transport, without and with overlap, by turns in each round."""
    ways = [(name, overlap) for name in options.transports for overlap in (False, True)]
    found: dict[tuple[str, bool], list[Handoff]] = {way: [] for way in ways}
    folder = tempfile.mkdtemp(prefix="fd-", dir="/tmp")
    bench = Bench(options, folder)
    try:
        for name in options.transports:
            # The first one connects.
            bench.hand_over(name, overlap=False)
        for _ in tqdm(range(options.rounds), desc="rounds"):
            for name, overlap in ways:
                found[name, overlap].append(bench.hand_over(name, overlap=overlap))
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    return [
        {"transport": name, "overlap": overlap, **summarise(handoffs)}
        for (name, overlap), handoffs in found.items()
    ]


def summarise(handoffs: Sequence[Handoff]) -> dict[str, Any]:
    """Spreads of the figures; the share is taken inside a handoff."""
    return {
        "num_bytes": handoffs[0].num_bytes,
        "prefill_ms": Spread.of(h.prefill_ms for h in handoffs),
        "cost_ms": Spread.of(h.cost_ms for h in handoffs),
        "share_percent": Spread.of(h.share for h in handoffs),
        "gigabytes_per_s": Spread.of(h.gigabytes_per_s for h in handoffs),
    }


def print_report(results: Sequence[dict[str, Any]]) -> None:
    """One line for each way."""
    print_table(
        ["handoff", "MB", "prefill, ms", "cost, ms", "% of prefill", "GB/s"],
        [
            [
                f"{result['transport']}{', layer by layer' if result['overlap'] else ''}",
                f"{result['num_bytes'] / 1e6:.1f}",
                result["prefill_ms"].short(),
                result["cost_ms"].short(),
                result["share_percent"].short(),
                "-" if result["overlap"] else result["gigabytes_per_s"].short(),
            ]
            for result in results
        ],
    )


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Shares of the prefill time as bars, from the least to the greatest."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    names = [f"{r['transport']}\n{'overlapped' if r['overlap'] else 'after'}" for r in results]
    shares = [result["share_percent"] for result in results]
    medians = [share.median for share in shares]
    errors = [
        [share.median - share.low for share in shares],
        [share.high - share.median for share in shares],
    ]
    axes.bar(names, medians, yerr=errors, capsize=4)
    axes.set(ylabel="cost of the handoff, % of prefill")
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    save_plot(figure, path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL, help="folder or GGUF file")
    parser.add_argument("--prompt", type=count, default=2048, help="tokens")
    parser.add_argument("--chunk", type=count, default=512, help="tokens of a step of prefill")
    parser.add_argument("--block-size", type=count, default=64, help="tokens of a block")
    parser.add_argument(
        "--kv-cache-dtype", choices=("bfloat16", "float32", "int8"), default="bfloat16"
    )
    parser.add_argument("--threads", type=count, help="of the prefill; default: all processors")
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), metavar="NAME")
    parser.add_argument("--no-checksums", action="store_true", help="do not compare blocks")
    parser.add_argument("--rounds", type=count, default=5)
    add_report_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    results = run(options)
    print_report(results)
    write_report(
        options, {"machine": machine(), "handoffs": results}, lambda path: plot(results, path)
    )


if __name__ == "__main__":
    main()
