# SPDX-License-Identifier: Apache-2.0
"""Load generator for any OpenAI-compatible server: throughput, latencies, acceptance of drafts.

Options and figures are named as in vLLM's serving benchmark. The server must run already:

    python -m fdspec.entrypoints.api_server --config configs/yaml/quickstart.yaml &
    python -m benchmarks.benchmark_serving --base-url http://127.0.0.1:8000 \\
        --num-prompts 64 --max-concurrency 8 --random-input-len 128 --random-output-len 128 \\
        --ignore-eos --output serving.json --plot serving.png
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import count
from benchmarks.datasets import (
    Prompt,
    character_slices,
    corpus_text,
    random_tokens,
    read_jsonl,
    text_slices,
)
from benchmarks.http_client import HTTPError
from benchmarks.load import (
    CHAT_ENDPOINT,
    LoadResult,
    Server,
    draft_counters,
    draft_summary,
    run_load,
    served_model,
    summarise,
    tokenize,
)
from benchmarks.report import load_pyplot, machine, print_table, save_plot, write_json

LABELS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between events",
    "e2el": "time of the whole request",
}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", default="http://127.0.0.1:8000")
    server.add_argument("--endpoint", default="/v1/completions", help=f"or {CHAT_ENDPOINT}")
    server.add_argument("--model", help="default: the first that the server offers")
    server.add_argument("--tokenizer", help="model folder or GGUF file; default: ask the server")
    server.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--dataset-name",
        "--dataset",
        choices=("text", "random", "custom"),
        default="text",
        help="slices of a bundled text, random tokens, or a JSONL file",
    )
    prompts.add_argument("--dataset-path", type=Path, help='lines {"prompt": ...} for custom')
    prompts.add_argument("--num-prompts", type=count, default=64)
    prompts.add_argument("--random-input-len", type=count, default=128, help="tokens of a prompt")
    prompts.add_argument("--random-output-len", type=count, default=128, help="tokens of an answer")
    prompts.add_argument("--ignore-eos", action="store_true", help="answers of full length")
    prompts.add_argument("--temperature", type=float, default=0.0)
    prompts.add_argument("--extra-body", type=json.loads, default={}, help="JSON object")
    prompts.add_argument("--seed", type=int, default=0)
    load = parser.add_argument_group("load")
    load.add_argument("--max-concurrency", type=count, help="requests that run at once")
    load.add_argument("--request-rate", type=float, default=float("inf"), help="arrivals a second")
    load.add_argument("--burstiness", type=float, default=1.0, help="1: Poisson, below: bursts")
    load.add_argument("--num-warmups", type=int, default=1, help="requests that do not count")
    results = parser.add_argument_group("results")
    results.add_argument("--metric-percentiles", default="90,99", help="comma-separated")
    results.add_argument("--output", type=Path, help="JSON file to write")
    results.add_argument("--plot", type=Path, help="image to write (needs matplotlib)")
    return parser.parse_args(arguments)


async def make_prompts(options: argparse.Namespace, server: Server) -> list[Prompt]:
    """The requests that were asked for, warm-ups first."""
    count = options.num_prompts + options.num_warmups
    lengths = (options.random_input_len, options.random_output_len)
    if options.dataset_name == "custom":
        if options.dataset_path is None:
            raise SystemExit("--dataset-name custom needs --dataset-path FILE.jsonl")
        return read_jsonl(options.dataset_path, count, lengths[1], options.seed)
    if server.endpoint == CHAT_ENDPOINT:
        if options.dataset_name == "random":
            raise SystemExit(f"--dataset-name random sends token ids, which {CHAT_ENDPOINT} lacks")
        return character_slices(corpus_text(), count, *lengths, options.seed)
    if options.tokenizer:
        from fdspec.tokenizer import load_tokenizer

        tokens = load_tokenizer(options.tokenizer).encode(corpus_text())
    else:
        tokens = await tokenize(server, corpus_text())
    if options.dataset_name == "random":
        # The ids that the text uses are certain to exist, and are no special tokens.
        return random_tokens(max(tokens), count, *lengths, options.seed)
    return text_slices(tokens, count, *lengths, options.seed)


async def measure(options: argparse.Namespace) -> tuple[dict[str, Any], LoadResult]:
    """Run the load; returns the report and all answers."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    base_url = options.base_url.rstrip("/")
    body = {"temperature": options.temperature, **options.extra_body}
    if options.ignore_eos:
        body["ignore_eos"] = True
    model = options.model or await served_model(base_url, headers)
    server = Server(base_url, model, options.endpoint, body, headers)
    prompts = await make_prompts(options, server)
    if warmups := prompts[: options.num_warmups]:
        await run_load(server, warmups)
    before = await draft_counters(server)
    result = await run_load(
        server,
        prompts[options.num_warmups :],
        max_concurrency=options.max_concurrency,
        request_rate=options.request_rate,
        burstiness=options.burstiness,
        seed=options.seed,
        progress=True,
    )
    shares = [float(share) for share in options.metric_percentiles.split(",")]
    report = {
        "machine": machine(),
        "options": {name: str(value) for name, value in vars(options).items() if name != "api_key"},
        "model": model,
        **summarise(result, shares),
        "speculation": draft_summary(before, await draft_counters(server)),
        "errors": sorted({answer.error for answer in result.answers if answer.error}),
    }
    return report, result


def print_report(report: dict[str, Any], result: LoadResult) -> None:
    """Throughput, then one line for each latency with its least and greatest value."""
    for name in ("completed", "failed", "total_input_tokens", "total_output_tokens"):
        print(f"{name:28s} {report[name]}")
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        print(f"{name + ' (1/s)':28s} {report[name]:.2f}")
    columns = [key.removesuffix("_ttft_ms") for key in report if key.endswith("_ttft_ms")]
    values = latencies_ms(result)
    print_table(
        ["latency in ms", *columns, "least", "greatest"],
        [
            [
                f"{name}: {label}",
                *(f"{report[f'{column}_{name}_ms']:.2f}" for column in columns),
                *(f"{bound:.2f}" for bound in (min(values[name]), max(values[name]))),
            ]
            for name, label in LABELS.items()
            if values[name]
        ],
    )
    if report["speculation"]:
        counts = report["speculation"]
        print(
            f"drafts: {counts.get('draft_tokens', 0):.0f} tokens drafted, "
            f"{counts.get('accepted_tokens', 0):.0f} accepted "
            f"({100 * counts['acceptance_rate']:.1f} %)"
        )
    for error in report["errors"]:
        print(f"failed: {error}")


def latencies_ms(result: LoadResult) -> dict[str, list[float]]:
    """All values of each latency."""
    done = result.completed
    return {
        "ttft": [1000 * a.first_token_s for a in done],
        "tpot": [1000 * a.time_per_output_token_s for a in done if a.num_output > 1],
        "itl": [1000 * gap_s for a in done for gap_s in a.gaps_s],
        "e2el": [1000 * a.latency_s for a in done],
    }


def plot(result: LoadResult, path: Path) -> None:
    """For each latency, which share of the requests stayed below it."""
    pyplot = load_pyplot()
    figure, panels = pyplot.subplots(1, len(LABELS), figsize=(4 * len(LABELS), 3.5))
    for axes, (name, values) in zip(panels, latencies_ms(result).items(), strict=True):
        ordered = sorted(values)
        shares = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
        axes.step(ordered, shares, where="post")
        axes.set(title=LABELS[name], xlabel="ms", ylabel="% at most this long", ylim=(0, 100))
        axes.grid(alpha=0.3)
    figure.tight_layout()
    save_plot(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write, plot; 1 if a request failed."""
    options = parse_arguments(arguments)
    if options.plot:
        load_pyplot()
    try:
        report, result = asyncio.run(measure(options))
    except (HTTPError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    print_report(report, result)
    if options.output:
        write_json(options.output, report)
    if options.plot:
        plot(result, options.plot)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
