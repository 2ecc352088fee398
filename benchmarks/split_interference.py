# SPDX-License-Identifier: Apache-2.0
"""The form of bench_interference over HTTP: prefill and decode apart, against one mixed server.

Streams decode while a long prompt arrives every few seconds. Two servers with a processor each, one
for prefill and one for decode, are compared with one server that has both processors: with its
default chunk, and with the chunk that gives prompts about the same time to first token. All servers
run all the time and are measured by turns in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.datasets import Prompt
from benchmarks.http_client import HTTPError, post_events
from benchmarks.launched_servers import launched_servers
from benchmarks.load import Server, answer_one, served_model
from benchmarks.report import Spread, load_pyplot, percentile, print_table, save_plot
from scripts.server_process import ServerError

CHUNKS = (256, 128, 64, 32)
_VOCABULARY = 10_000
_SETTLE_S = 1.0
_COMMON = """\
model: {model}
max_model_len: {max_model_len}
max_num_seqs: {max_num_seqs}
speculative_config: off
enable_prefix_caching: false
uvicorn_log_level: warning
"""
_SPLIT = """\
servers:
  prefill: {{cpus: {first}, num_gpu_blocks_override: {blocks}}}
  decode: {{cpus: {second}, num_gpu_blocks_override: {blocks}}}
  frontend: {{}}
"""
_MIXED = "num_threads: 2\nmax_num_batched_tokens: {chunk}\nnum_gpu_blocks_override: {blocks}\n"


@dataclass(frozen=True)
class Window:
    """What one server did for some seconds.

    Attributes:
        gaps_ms: between the tokens of a stream, of all streams.
        first_token_ms: of the prompts that arrived meanwhile.
    """

    gaps_ms: list[float]
    first_token_ms: list[float]

    @property
    def p99_ms(self) -> float:
        """99th percentile of the gaps."""
        return percentile(self.gaps_ms, 99)


def measure_split(options: argparse.Namespace) -> dict[str, Any]:
    """Windows of each way to serve, by name, and the chunk that was found.

    Raises:
        SystemExit: there are not two processors, or servers do not start.
    """
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        raise SystemExit("error: --split needs two processors")
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fd-")))

            values = _sizes(options)
            split = _SPLIT.format(first=cpus[0], second=cpus[1], **values)
            servers = {
                "split": _start(stack, folder / "split.yaml", _COMMON.format(**values) + split),
                "mixed": _start(stack, folder / "mixed.yaml", _mixed(values, 512)),
            }
            chunk = options.chunk or _find_chunk(options, servers["split"], folder, values)
            same = _start(stack, folder / "same.yaml", _mixed(values, chunk))
            servers["same_ttft"] = same
            windows: dict[str, list[Window]] = {name: [] for name in servers}
            for _ in tqdm(range(options.rounds), desc="rounds"):
                for name, server in servers.items():
                    windows[name].append(asyncio.run(_window(options, server)))
    except (ServerError, HTTPError) as error:
        raise SystemExit(f"error: {error}") from None
    return {"chunk": chunk, "windows": windows}


def summarise_split(measured: dict[str, Any]) -> dict[str, Any]:
    """Spreads of each way; ratios are taken inside a round."""
    windows: dict[str, list[Window]] = measured["windows"]
    split = windows["split"]
    return {
        name: {
            "chunk": {"split": None, "mixed": 512}.get(name, measured["chunk"]),
            "p50_gap_ms": Spread.of(percentile(window.gaps_ms, 50) for window in found),
            "p99_gap_ms": Spread.of(window.p99_ms for window in found),
            "first_token_ms": Spread.of(percentile(w.first_token_ms, 50) for w in found),
            "split_over_this": Spread.of(
                apart.p99_ms / window.p99_ms for apart, window in zip(split, found, strict=True)
            ),
        }
        for name, found in windows.items()
    }


def print_split(results: dict[str, Any]) -> None:
    """One line for each way."""
    labels = {
        "split": "prefill and decode, a processor each",
        "mixed": "mixed, default chunk",
        "same_ttft": f"mixed, chunk {results['same_ttft']['chunk']}",
    }
    keys = ("p50_gap_ms", "p99_gap_ms", "first_token_ms", "split_over_this")
    print_table(
        ["servers", "p50 gap, ms", "p99 gap, ms", "first token, ms", "split / this, p99"],
        [[labels[name], *(found[key].short() for key in keys)] for name, found in results.items()],
    )


def plot_split(measured: dict[str, Any], path: Path) -> None:
    """Which share of the gaps was longer than a time."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for name, windows in measured["windows"].items():
        gaps = sorted(gap for window in windows for gap in window.gaps_ms)
        shares = [1 - i / len(gaps) for i in range(len(gaps))]
        axes.plot(gaps, shares, label=name)
    axes.set(xscale="log", yscale="log", xlabel="ms between tokens", ylabel="share longer")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    save_plot(figure, path)


def _sizes(options: argparse.Namespace) -> dict[str, Any]:
    max_model_len = max(options.context + options.stream_tokens, options.prompt + 1)
    max_num_seqs = options.streams + 2
    return {
        "model": options.model,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "blocks": max_num_seqs * -(-max_model_len // 64),
    }


def _mixed(values: dict[str, Any], chunk: int) -> str:
    """The file of a server with both processors."""
    return _COMMON.format(**values) + _MIXED.format(chunk=chunk, **values)


def _start(stack: contextlib.ExitStack, file: Path, text: str) -> Server:
    """Servers that run until the stack ends."""
    file.write_text(text)
    started = stack.enter_context(launched_servers([str(file)]))
    model = asyncio.run(served_model(started.url))
    return Server(started.url, model, extra_body={"temperature": 0.0, "ignore_eos": True})


def _find_chunk(
    options: argparse.Namespace, split: Server, folder: Path, values: dict[str, Any]
) -> int:
    """The largest chunk at which a prompt waits as long as it does with prefill apart."""
    limit_ms = percentile(asyncio.run(_window(options, split)).first_token_ms, 50)
    for chunk in CHUNKS:
        with contextlib.ExitStack() as stack:
            server = _start(stack, folder / f"chunk{chunk}.yaml", _mixed(values, chunk))
            window = asyncio.run(_window(options, server))
        if percentile(window.first_token_ms, 50) >= limit_ms:
            return chunk
    return CHUNKS[-1]


async def _window(options: argparse.Namespace, server: Server) -> Window:
    """Start the streams, and prompts among them; what happened, from the first prompt on."""
    source = random.Random(options.rounds)
    gaps: list[tuple[float, float]] = []
    started = [asyncio.Event() for _ in range(options.streams)]
    streams = [
        asyncio.create_task(_follow(server, _prompt(source, options.context, options), gaps, event))
        for event in started
    ]
    try:
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started)), 120)
        await asyncio.sleep(_SETTLE_S)
        start_s = time.perf_counter()
        prompts = []
        while time.perf_counter() < start_s + options.seconds:
            prompt = Prompt(_prompt(source, options.prompt, options).content, 1)
            prompts.append(asyncio.create_task(answer_one(server, prompt)))
            await asyncio.sleep(options.every)
        answers = await asyncio.gather(*prompts)
        end_s = time.perf_counter()
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    if failed := [answer.error for answer in answers if answer.error]:
        raise HTTPError(failed[0])
    return Window(
        [1000 * gap_s for at_s, gap_s in gaps if start_s <= at_s <= end_s],
        [1000 * answer.first_token_s for answer in answers],
    )


async def _follow(
    server: Server, prompt: Prompt, gaps: list[tuple[float, float]], started: asyncio.Event
) -> None:
    """Read streams, one after another, and note when their tokens come and after how long."""
    while True:
        last_s = 0.0
        async for _ in _tokens(server, prompt):
            now_s = time.perf_counter()
            if last_s:
                gaps.append((now_s, now_s - last_s))
                started.set()
            last_s = now_s


async def _tokens(server: Server, prompt: Prompt) -> AsyncIterator[None]:
    body = {
        **{"model": server.model, "prompt": prompt.content, "max_tokens": prompt.num_output},
        **{"stream": True, **server.extra_body},
    }
    async with contextlib.aclosing(post_events(server.base_url + server.endpoint, body)) as events:
        async for data in events:
            if data != b"[DONE]" and json.loads(data).get("choices"):
                yield None


def _prompt(source: random.Random, length: int, options: argparse.Namespace) -> Prompt:
    tokens = [source.randrange(_VOCABULARY) for _ in range(length)]
    return Prompt(tokens, options.stream_tokens)
