# SPDX-License-Identifier: Apache-2.0
"""Load generator for any OpenAI-compatible server: throughput, latencies, acceptance of drafts.

Options and figures are named as in vLLM's and FastDeploy's serving benchmarks. It measures a server
that runs, or starts the servers of YAML files, measures them and stops them:

    python -m benchmarks.benchmark_serving --base-url http://127.0.0.1:8000 \\
        --num-prompts 64 --max-concurrency 8 --ignore-eos --output serving.json --plot serving.png
    python -m benchmarks.benchmark_serving --config configs/yaml/quickstart.yaml \\
        --speculative-config '{"method": "ngram"}' --dataset-name prompts --baseline
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.datasets import (
    Lengths,
    Prompt,
    character_slices,
    corpus_text,
    random_tokens,
    read_jsonl,
    read_sharegpt,
    text_slices,
    written_prompts,
)
from benchmarks.http_client import HTTPError, post_json
from benchmarks.launched_servers import launch_flags, launched_servers
from benchmarks.load import (
    CHAT_ENDPOINT,
    LoadResult,
    Server,
    run_load,
    served_model,
    tokenize,
)
from benchmarks.report import machine, write_json, write_report
from benchmarks.server_metrics import Counters, draft_summary, handoff_summary, read_counters
from benchmarks.serving_arguments import parse_arguments
from benchmarks.serving_report import (
    COMPARED,
    PHASES,
    details,
    figures,
    phases,
    plot,
    print_comparison,
    print_figures,
    print_handoffs,
    print_speculation,
    print_values,
    ratios,
)
from scripts.server_process import ServerError

PLAIN = {"speculative": {"enabled": False}}


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        report: for the JSON file.
        result: of the requests, those with speculation if there are two kinds.
        baseline: of those without; None if there are none.
        rounds: reports with and without, of each round of a comparison.
    """

    report: dict[str, Any]
    result: LoadResult
    baseline: LoadResult | None = None
    rounds: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = ()


async def make_prompts(
    options: argparse.Namespace, server: Server, count: int, seed: int
) -> list[Prompt]:
    """The requests that were asked for.

    Raises:
        ValueError: a file or the length of a text is not fit for them.
        HTTPError: the server does not tokenise.
    """
    lengths = Lengths(
        options.random_input_len, options.random_output_len, options.random_range_ratio
    )
    is_chat = server.endpoint == CHAT_ENDPOINT
    if options.dataset_name == "jsonl":
        prompts = read_jsonl(options.dataset_path, count, lengths.num_output, seed)
        if not is_chat and any(_is_messages(prompt) for prompt in prompts):
            raise ValueError(f"{options.dataset_path} holds messages: give --backend openai-chat")
        return prompts
    if options.dataset_name == "prompts":
        return written_prompts(count, lengths.num_output, seed)
    if is_chat and options.dataset_name == "random":
        raise ValueError(f"--dataset-name random sends token ids, which {CHAT_ENDPOINT} lacks")
    if is_chat and options.dataset_name == "text":
        return character_slices(corpus_text(), count, lengths, seed)
    tokens = await _tokens(options, server, corpus_text())
    if options.dataset_name == "sharegpt":
        # Tokens of the bundled text tell how long a token is.
        characters = len(corpus_text()) / len(tokens)
        output_len = options.sharegpt_output_len
        return read_sharegpt(
            options.dataset_path,
            count,
            output_len,
            lambda text: round(len(text) / characters),
            seed,
        )
    if options.dataset_name == "random":
        # The ids that the text uses are certain to exist, and are no special tokens.
        return random_tokens(max(tokens), count, lengths, seed)
    sizes = (lengths.num_input, lengths.num_output)
    return text_slices(tokens, count, *sizes, seed, lengths.range_ratio)


async def _tokens(options: argparse.Namespace, server: Server, text: str) -> list[int]:
    if options.tokenizer:
        from fdspec.tokenizer import load_tokenizer

        return list(load_tokenizer(options.tokenizer).encode(text))
    return await tokenize(server, text)


def _is_messages(prompt: Prompt) -> bool:
    return isinstance(prompt.content, list) and isinstance(prompt.content[0], dict)


async def measure(
    options: argparse.Namespace, base_url: str, worker_urls: Sequence[str] = ()
) -> Measured:
    """Run the load on a server that is ready.

    Args:
        options: of the command line.
        base_url: of the server.
        worker_urls: of servers whose handoffs are counted.

    Raises:
        HTTPError, ValueError: it cannot be run; a request that fails is counted instead.
    """
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    model = options.model or await served_model(base_url, headers)
    server = Server(base_url, model, options.endpoint, options.body, headers)
    if options.num_warmups:
        # Of another seed, so that no cache knows the prompts that count.
        seed = options.seed + 1_000_003
        await run_load(server, await make_prompts(options, server, options.num_warmups, seed))
    handoffs = await _read_all(worker_urls, headers)
    measured = await (_compare if options.baseline else _measure_once)(options, server)
    results = [result for result in (measured.result, measured.baseline) if result is not None]
    report: dict[str, Any] = {
        "machine": machine(),
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "options": {name: str(value) for name, value in vars(options).items() if name != "api_key"},
        "backend": options.backend,
        "model": model,
        **options.metadata,
        **measured.report,
        "errors": sorted({a.error for result in results for a in result.answers if a.error}),
    }
    if options.pd_metrics:
        report["phases_ms"] = phases(measured.result)
        report["handoffs"] = handoff_summary(handoffs, await _read_all(worker_urls, headers))
    return dataclasses.replace(measured, report=report)


async def _read_all(urls: Sequence[str], headers: Mapping[str, str]) -> dict[str, Counters | None]:
    return {url: await read_counters(url, headers) for url in urls}


async def _measure_once(options: argparse.Namespace, server: Server) -> Measured:
    prompts = await make_prompts(options, server, options.num_prompts, options.seed)
    before = await read_counters(server.base_url, server.headers)
    result = await _run(options, server, prompts, "requests")
    after = await read_counters(server.base_url, server.headers)
    report = _figures(options, result)
    return Measured({**report, "speculation": draft_summary(before, after)}, result)


async def _compare(options: argparse.Namespace, server: Server) -> Measured:
    """Every prompt with and without speculation, in rounds that begin with one or the other."""
    # Where tokens are drawn, the same ones are drawn twice.
    body = {"seed": options.seed, **server.extra_body}
    speculating = dataclasses.replace(server, extra_body=body)
    plain = dataclasses.replace(server, extra_body={**body, **PLAIN})
    rounds: list[tuple[LoadResult, LoadResult]] = []
    before = await read_counters(server.base_url, server.headers)
    for index in range(options.rounds):
        prompts = await make_prompts(options, server, options.num_prompts, options.seed + index)
        found: dict[bool, LoadResult] = {}
        for is_plain in (False, True) if index % 2 == 0 else (True, False):
            await _clear_cache(server)
            name = f"round {index + 1}, {'without' if is_plain else 'with'}"
            found[is_plain] = await _run(options, plain if is_plain else speculating, prompts, name)
        rounds.append((found[False], found[True]))
    after = await read_counters(server.base_url, server.headers)
    reports = tuple((_figures(options, a), _figures(options, b)) for a, b in rounds)
    result, baseline = (_joined([pair[index] for pair in rounds]) for index in (0, 1))
    pairs = [
        (a, b)
        for a, b in zip(result.answers, baseline.answers, strict=True)
        if not a.error and not b.error
    ]
    report = {
        **_figures(options, result),
        "baseline": _figures(options, baseline),
        "rounds": reports,
        "ratios": {name: ratios(reports, name) for name in COMPARED},
        "compared": len(pairs),
        "different": sum(a.text != b.text for a, b in pairs),
        "speculation": draft_summary(before, after),
    }
    return Measured(report, result, baseline, reports)


async def _run(
    options: argparse.Namespace, server: Server, prompts: Sequence[Prompt], name: str
) -> LoadResult:
    return await run_load(
        server,
        prompts,
        max_concurrency=options.max_concurrency,
        request_rate=options.request_rate,
        burstiness=options.burstiness,
        seed=options.seed,
        progress="" if options.disable_tqdm else name,
    )


async def _clear_cache(server: Server) -> None:
    """Have a server forget prompts, where it can."""
    with contextlib.suppress(HTTPError):
        await post_json(f"{server.base_url}/v1/cache/clear", {}, server.headers)


def _figures(options: argparse.Namespace, result: LoadResult) -> dict[str, Any]:
    percentiles = sorted({*options.metric_percentiles, 99.0})
    return figures(result, percentiles, options.goodput)


def _joined(results: Sequence[LoadResult]) -> LoadResult:
    answers = [answer for result in results for answer in result.answers]
    return LoadResult(answers, sum(result.duration_s for result in results))


def print_report(options: argparse.Namespace, measured: Measured) -> None:
    """All that was asked for."""
    report, shares = measured.report, options.metric_percentiles
    print_figures(report, measured.result, options.percentile_metrics, shares)
    if options.pd_metrics:
        rows = {PHASES[name]: values for name, values in report["phases_ms"].items()}
        print_values("milliseconds", rows, shares)
        print_handoffs(report["handoffs"])
    print_speculation(report["speculation"])
    if measured.rounds:
        print_comparison(measured.rounds)
        same = report["compared"] - report["different"]
        print(f"{same} of {report['compared']} answers are the same with and without speculation")
    for error in report["errors"]:
        print(f"failed: {error}")


def result_path(options: argparse.Namespace, report: dict[str, Any]) -> Path:
    """Where --save-result writes to."""
    if options.result_filename:
        return Path(options.result_dir / options.result_filename)
    concurrency = f"-concurrency{options.max_concurrency}" if options.max_concurrency else ""
    model = str(report["model"]).rstrip("/").rpartition("/")[2]
    name = f"{options.backend}-{options.request_rate}qps{concurrency}-{model}-{report['date']}.json"
    return Path(options.result_dir / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write, plot; 1 if a request failed or speculation changed an answer."""
    options = parse_arguments(__doc__, arguments)
    try:
        with contextlib.ExitStack() as stack:
            base_url, worker_urls = options.base_url, options.worker_url
            if options.config:
                flags = launch_flags(
                    options.speculative_config, options.scheduler_topic, options.launch_options
                )
                if options.baseline:
                    # What the first of two equal requests leaves would serve the second.
                    flags += ["--enable-prefix-caching", "false"]
                servers = launched_servers(options.config, flags, options.start_timeout)
                started = stack.enter_context(servers)
                base_url, worker_urls = started.url, list(started.urls.values())
            measured = asyncio.run(measure(options, base_url, worker_urls))
    except (HTTPError, ServerError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    print_report(options, measured)
    report = measured.report
    written = {**report, **details(measured.result)} if options.save_detailed else report
    curves = {"requests": measured.result}
    if measured.baseline is not None:
        curves = {"with speculation": measured.result, "without": measured.baseline}
    write_report(options, written, lambda path: plot(curves, path))
    if options.save_result or options.save_detailed:
        write_json(result_path(options, report), written)
    return 1 if report["errors"] or report.get("different") else 0


if __name__ == "__main__":
    raise SystemExit(main())
