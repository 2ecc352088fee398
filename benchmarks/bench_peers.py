# SPDX-License-Identifier: Apache-2.0
"""fdspec beside other servers and libraries on the same machine, model and prompts.

Installs nothing: name the peers that you have. Each round measures every peer once before the next
round begins, so that a machine whose speed drifts favours none; ratios are taken round by round.

    python -m benchmarks.bench_peers --llama-bench llama.cpp/bin/llama-bench \\
        --llama-server llama.cpp/bin/llama-server --openvino-python openvino/bin/python \\
        --output peers.json --plot peers.png
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.datasets import corpus_text
from benchmarks.http_client import HTTPError
from benchmarks.peers.base import InProcessPeer, PeerError, Sizes
from benchmarks.peers.llama_cpp import LlamaBenchPeer, server_command
from benchmarks.peers.rounds import Records, in_process_round, memory_alone, served_round
from benchmarks.peers.served import ServedPeer
from benchmarks.peers.worker import WorkerPeer
from benchmarks.report import (
    add_report_options,
    load_pyplot,
    machine,
    print_table,
    save_plot,
    write_report,
)
from fdspec.config import config_from_options
from fdspec.tokenizer import load_tokenizer
from scripts.server_process import ServerError

OURS = "fdspec"
SECTIONS = ("in-process", "http")
NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = parser.add_argument_group("peers")
    peers.add_argument("--config", default="configs/yaml/quickstart.yaml", help="fdspec's YAML")
    peers.add_argument("--no-fdspec", action="store_true", help="measure the others only")
    peers.add_argument("--llama-bench", type=Path, help="llama-batched-bench must lie beside it")
    peers.add_argument("--llama-server", type=Path)
    peers.add_argument("--llama-model", type=Path, nargs="+", help="default: that of --config")
    peers.add_argument("--openvino-python", type=Path, help="a Python that has openvino-genai")
    peers.add_argument("--openvino-model", type=Path, help="default: that of --config")
    peers.add_argument(
        "--vllm", "--server", metavar="URL", nargs="+", help="OpenAI-compatible servers that run"
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument("--only", choices=SECTIONS, help="default: both sections")
    what.add_argument("--rounds", type=count, default=5)
    what.add_argument("--threads", type=count, default=len(os.sched_getaffinity(0)))
    what.add_argument("--prefill", type=count, nargs="*", default=(128, 512, 2048))
    what.add_argument("--context", type=int, default=128, help="prompt tokens of a stream")
    what.add_argument("--output-len", type=count, default=128, help="output tokens of a stream")
    what.add_argument("--streams", type=count, nargs="*", default=(4, 8, 16))
    what.add_argument("--concurrency", type=count, nargs="*", default=(1, 4, 8, 16))
    what.add_argument("--max-model-len", type=count, default=4096)
    add_report_options(parser)
    return parser.parse_args(arguments)


def fdspec_options(options: argparse.Namespace, speculation: object) -> dict[str, Any]:
    """Engine keys that win over --config, so that all peers do the same work."""
    return {
        "num_threads": options.threads,
        "max_num_seqs": max([*options.streams, *options.concurrency, 1]),
        "max_model_len": options.max_model_len,
        "speculative_config": speculation,
    }


def in_process_peers(
    options: argparse.Namespace, model: Path, tokens: Sequence[int]
) -> list[InProcessPeer]:
    """The peers that were named, fdspec first."""
    peers: list[InProcessPeer] = []
    if not options.no_fdspec:
        for name, speculation in ((OURS, None), (f"{OURS} ngram", NGRAM)):
            command = [sys.executable, "-m", "benchmarks.peers.fdspec_worker"]
            command += ["--config", options.config]
            command += ["--options", json.dumps(fdspec_options(options, speculation))]
            peers.append(WorkerPeer(name, command, tokens))
    if options.openvino_python:
        command = [str(options.openvino_python), "-m", "benchmarks.peers.openvino_worker"]
        command += ["--model", str((options.openvino_model or model).resolve())]
        peers.append(WorkerPeer("OpenVINO", [*command, "--threads", str(options.threads)], tokens))
    if options.llama_bench:
        for path in options.llama_model or [model]:
            name = f"llama.cpp {quantisation(path)}"
            peers.append(LlamaBenchPeer(name, options.llama_bench, path, options.threads))
    return peers


def served_peers(options: argparse.Namespace, model: Path) -> list[ServedPeer]:
    """The servers that were named, fdspec first."""
    peers = []
    if not options.no_fdspec:
        for name, speculation in ((OURS, "off"), (f"{OURS} ngram", json.dumps(NGRAM))):
            command = [sys.executable, "-m", "fdspec.entrypoints.api_server"]
            command += ["--config", options.config]
            for key, value in fdspec_options(options, speculation).items():
                command += ["--" + key.replace("_", "-"), str(value)]
            peers.append(ServedPeer(name, command=command))
    if options.llama_server:
        most = most_at_once(options)
        for path in options.llama_model or [model]:
            command = server_command(options.llama_server, path, options.threads, most, 512)
            peers.append(ServedPeer(f"llama-server {quantisation(path)}", command=command))
    for url in options.vllm or []:
        peers.append(ServedPeer(url, url=url))
    return peers


def most_at_once(options: argparse.Namespace) -> int:
    """Requests that a server must be able to run together."""
    most: int = max([*options.concurrency, 1])
    return most


def quantisation(path: Path) -> str:
    """The last part of a GGUF file's name, usually Q4_1 and the like."""
    return path.stem.rpartition(".")[2]


def measure_in_process(
    options: argparse.Namespace, model: Path, tokens: Sequence[int], records: Records
) -> None:
    """All rounds of the section; every peer keeps its model loaded."""
    sizes = Sizes(options.prefill, options.context, options.output_len, options.streams)
    peers = in_process_peers(options, model, tokens)
    with ExitStack() as stack:
        for peer in peers:
            stack.callback(peer.close)
            peer.start()
        for index in tqdm(range(options.rounds), desc="in process"):
            in_process_round(peers, sizes, records, index)


def measure_served(
    options: argparse.Namespace, model: Path, tokens: Sequence[int], records: Records
) -> None:
    """All rounds of the section; all servers run, and those that are not asked are idle."""
    lengths = (options.context, options.output_len)
    peers = served_peers(options, model)
    with ExitStack() as stack:
        for peer in peers:
            stack.callback(peer.close)
            peer.start()
            if peer.start_s is not None:
                records.add("start-up, s", peer.name, peer.start_s)
        for index in tqdm(range(options.rounds), desc="http"):
            served_round(peers, tokens, options.concurrency, lengths, records, index)
    for peer in peers:
        if peer.start_s is not None:
            memory_alone(peer, tokens, most_at_once(options), lengths, records)


def print_report(report: dict[str, Any]) -> None:
    """One block for each figure: every peer, and what fdspec is beside it."""
    print(f"\n{report['machine']['processor']}, {report['num_threads']} threads")
    rows = []
    for measure, peers in report["figures"].items():
        for index, (name, figure) in enumerate(peers.items()):
            ratio = figure.get("fdspec_ratio")
            rows.append(
                [
                    measure if index == 0 else "",
                    name,
                    figure["spread"].short(),
                    ratio.short() if ratio else "",
                ]
            )
    print_table(["figure", "peer", "median (low .. high)", "fdspec : peer"], rows)


def plot(report: dict[str, Any], path: Path) -> None:
    """Bars with ranges: one panel for each figure."""
    pyplot = load_pyplot()
    figures = report["figures"]
    names = sorted({name for peers in figures.values() for name in peers})
    colours = {name: f"C{index}" for index, name in enumerate(names)}
    columns = 4
    rows = -(-len(figures) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 2.4 * rows), squeeze=False
    )
    for axes in panels.flat[len(figures) :]:
        axes.axis("off")
    for axes, (measure, peers) in zip(panels.flat, figures.items(), strict=False):
        for place, (name, entry) in enumerate(peers.items()):
            spread = entry["spread"]
            errors = [[spread.median - spread.low], [spread.high - spread.median]]
            axes.barh(place, spread.median, xerr=errors, color=colours[name])
        axes.set_yticks(range(len(peers)), list(peers), fontsize=7)
        axes.invert_yaxis()
        axes.set_title(measure, fontsize=9)
    figure.tight_layout()
    save_plot(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    model = Path(config_from_options({}, options.config).config.model.model)
    tokens = load_tokenizer(model).encode(corpus_text())
    records = Records()
    try:
        if options.only != "http":
            measure_in_process(options, model, tokens, records)
        if options.only != "in-process":
            measure_served(options, model, tokens, records)
    except (PeerError, ServerError, HTTPError) as error:
        raise SystemExit(f"error: {error}") from None
    report = {
        "machine": machine(),
        "model": str(model),
        "num_threads": options.threads,
        "rounds": options.rounds,
        "figures": records.summary(OURS),
    }
    print_report(report)
    write_report(options, report, lambda path: plot(report, path))


if __name__ == "__main__":
    main()
