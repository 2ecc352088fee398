# SPDX-License-Identifier: Apache-2.0
"""One round of bench_peers: every figure of every peer once, peers next to each other in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from benchmarks.datasets import text_slices
from benchmarks.load import Server, answer_one, run_load, summarise
from benchmarks.peers.base import InProcessPeer, PeerError, Sizes
from benchmarks.peers.served import ServedPeer
from benchmarks.report import Spread

IDLE_PROMPT_TOKENS = 100
IDLE_REQUESTS = 4
IDLE_PAUSE_S = 0.3
MEBIBYTE = 2**20
AnyPeer = TypeVar("AnyPeer")
LATENCIES = {
    "TTFT mean": "mean_ttft_ms",
    "TTFT p99": "p99_ttft_ms",
    "TPOT mean": "mean_tpot_ms",
    "TPOT p99": "p99_tpot_ms",
}


class Records:
    """Values of all rounds, by figure and peer, in the order in which they first came."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}

    def add(self, measure: str, peer: str, value: float) -> None:
        """Note one value."""
        self.values.setdefault(measure, {}).setdefault(peer, []).append(value)

    def summary(self, ours: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Spreads, and round by round the ratio of our value to a peer's.

        Args:
            ours: the peer that others are compared with; without it there are no ratios.
        """
        result: dict[str, dict[str, dict[str, Any]]] = {}
        for measure, peers in self.values.items():
            own = peers.get(ours)
            for name, values in peers.items():
                figure: dict[str, Any] = {"spread": Spread.of(values), "values": values}
                if own is not None and name != ours and len(own) == len(values):
                    ratios = [a / b for a, b in zip(own, values, strict=True)]
                    figure["fdspec_ratio"] = Spread.of(ratios)
                result.setdefault(measure, {})[name] = figure
        return result


def in_process_round(
    peers: Sequence[InProcessPeer], sizes: Sizes, records: Records, index: int
) -> None:
    """Prefill, decode and streams of every peer; odd rounds go through the peers backwards."""
    measures: dict[str, Callable[[InProcessPeer], float]] = {}
    for count in sizes.prefill:
        measures[f"prefill {count}, tokens/s"] = partial(_prefill, count)
    measures[f"decode {sizes.output} after {sizes.context}, tokens/s"] = partial(_decode, sizes)
    for count in sizes.streams:
        measures[f"{count} streams, output tokens/s"] = partial(_streams, count, sizes)
    for measure, rate_of in measures.items():
        for peer in _ordered(peers, index):
            records.add(measure, peer.name, rate_of(peer))


def _prefill(num_tokens: int, peer: InProcessPeer) -> float:
    return peer.prefill_rate(num_tokens)


def _decode(sizes: Sizes, peer: InProcessPeer) -> float:
    return peer.decode_rate(sizes.context, sizes.output)


def _streams(count: int, sizes: Sizes, peer: InProcessPeer) -> float:
    return peer.streams_rate(count, sizes.context, sizes.output)


def served_round(
    peers: Sequence[ServedPeer],
    tokens: Sequence[int],
    concurrencies: Sequence[int],
    lengths: tuple[int, int],
    records: Records,
    index: int,
) -> None:
    """Latency of an idle server, then load at each concurrency; every peer gets the same prompts.

    Args:
        peers: started.
        tokens: of the text that prompts are cut from.
        concurrencies: requests at once.
        lengths: tokens of a prompt and of an answer.
        records: takes the figures.
        index: of the round; each has prompts of its own.
    """
    for peer in _ordered(peers, index):
        first_s = asyncio.run(_idle_first_token_s(peer.server, tokens, index))
        records.add(
            f"HTTP, idle: TTFT of {IDLE_PROMPT_TOKENS} tokens, ms", peer.name, first_s * 1e3
        )
    for concurrency in concurrencies:
        prompts = text_slices(tokens, max(2 * concurrency, 4), *lengths, 1000 * index + concurrency)
        for peer in _ordered(peers, index):
            result = asyncio.run(run_load(peer.server, prompts, max_concurrency=concurrency))
            summary = summarise(result)
            if summary["failed"]:
                errors = {answer.error for answer in result.answers if answer.error}
                raise PeerError(f"{peer.name}: {summary['failed']} requests failed: {errors}")
            prefix = f"HTTP, {concurrency} at once"
            records.add(f"{prefix}: output tokens/s", peer.name, summary["output_throughput"])
            for label, key in LATENCIES.items():
                records.add(f"{prefix}: {label}, ms", peer.name, summary[key])


def memory_alone(
    peer: ServedPeer,
    tokens: Sequence[int],
    concurrency: int,
    lengths: tuple[int, int],
    records: Records,
) -> None:
    """Memory of a server after load, while no other runs: those that map the same file share it.

    Args:
        peer: one that we start; not started yet.
        tokens: of the text that prompts are cut from.
        concurrency: requests at once.
        lengths: tokens of a prompt and of an answer.
        records: takes the figure.
    """
    try:
        peer.start()
        prompts = text_slices(tokens, concurrency, *lengths, seed=1)
        asyncio.run(run_load(peer.server, prompts))
        memory = peer.memory_bytes()
        assert memory is not None
        records.add("memory of all processes (PSS), MiB", peer.name, memory / MEBIBYTE)
    finally:
        peer.close()


async def _idle_first_token_s(server: Server, tokens: Sequence[int], index: int) -> float:
    """Median of a few requests, one after the other."""
    prompts = text_slices(tokens, IDLE_REQUESTS + 1, IDLE_PROMPT_TOKENS, 2, 500_000 + index)
    times_s = []
    for prompt in prompts:
        # Long enough for threads that wait to fall asleep.
        await asyncio.sleep(IDLE_PAUSE_S)
        answer = await answer_one(server, prompt)
        if answer.error:
            raise PeerError(f"a request to an idle server failed: {answer.error}")
        times_s.append(answer.first_token_s)
    # The first one warms up.
    return Spread.of(times_s[1:]).median


def _ordered(peers: Sequence[AnyPeer], index: int) -> list[AnyPeer]:
    return list(peers) if index % 2 == 0 else list(reversed(peers))
