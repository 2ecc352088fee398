# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmark_serving. Names are vLLM's and FastDeploy's, where they have one."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.arguments import count
from benchmarks.load import CHAT_ENDPOINT
from benchmarks.report import add_report_options

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": CHAT_ENDPOINT}
DATASETS = ("text", "random", "prompts", "jsonl", "sharegpt")
METRICS = ("ttft", "tpot", "itl", "e2el", "s_decode", "input_len", "output_len", "cached_tokens")
GOODPUT = ("ttft", "tpot", "e2el")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "logprobs")


def parse_arguments(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, checked; `endpoint`, `base_url` and `body` are derived ones.

    Args:
        description: of the program.
        arguments: without the program's name; None takes the process's own.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_server(parser.add_argument_group("a server that runs"))
    _add_launch(parser.add_argument_group("servers that are started"))
    _add_prompts(parser.add_argument_group("prompts"))
    _add_load(parser.add_argument_group("load"))
    _add_results(parser.add_argument_group("results"))
    options = parser.parse_args(arguments)
    _check(parser, options)
    options.endpoint = options.endpoint or ENDPOINTS[options.backend]
    options.base_url = (options.base_url or f"http://{options.host}:{options.port}").rstrip("/")
    options.body = _body(parser, options)
    return options


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", help="default: http://HOST:PORT")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--backend", choices=tuple(ENDPOINTS), default="openai")
    group.add_argument("--endpoint", help="default: the backend's")
    group.add_argument(
        "--model", "--served-model-name", help="default: the first that the server offers"
    )
    group.add_argument("--tokenizer", help="model folder or GGUF file; default: ask the server")
    group.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))


def _add_launch(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE.yaml",
        help="start the server of this file, measure it and stop it; given twice, for prefill and "
        "decode, or with a file that names `servers`, several servers (docs/disaggregation.md)",
    )
    group.add_argument("--speculative-config", metavar="JSON", help="of the servers, or off")
    group.add_argument("--scheduler-topic", help="of the servers")
    group.add_argument(
        "--launch-options", default="", metavar="TEXT", help="further flags, as one text"
    )
    group.add_argument("--start-timeout", type=float, default=600.0, help="seconds")


def _add_prompts(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        *("--dataset-name", "--dataset"),
        choices=(*DATASETS, "custom"),
        default="text",
        help="slices of a bundled text, random tokens, bundled prompts of several kinds, or a file "
        "(custom is jsonl)",
    )
    group.add_argument(
        "--dataset-path",
        type=Path,
        help='jsonl: lines {"prompt": ...} or {"messages": [...]}, and "output_tokens"; sharegpt: '
        "a list of conversations",
    )
    group.add_argument("--num-prompts", type=count, default=64)
    group.add_argument("--random-input-len", type=count, default=128, help="tokens of a prompt")
    group.add_argument("--random-output-len", type=count, default=128, help="tokens of an answer")
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="lengths of text and random vary by up to this share, 0 to 1 (default: %(default)s)",
    )
    group.add_argument(
        "--sharegpt-output-len", type=count, help="default: as long as the file's answers"
    )
    group.add_argument("--ignore-eos", action="store_true", help="answers of full length")
    group.add_argument("--temperature", type=float, help="default: 0")
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=int)
    group.add_argument("--min-p", type=float)
    group.add_argument("--logprobs", type=int, help="of so many tokens at each position")
    group.add_argument(
        "--hyperparameter-path",
        type=Path,
        metavar="FILE.yaml",
        help="fields of every request; flags win",
    )
    group.add_argument("--extra-body", type=json.loads, default={}, help="JSON object; wins")
    group.add_argument("--seed", type=int, default=0, help="of prompts and arrivals")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-concurrency", type=count, help="requests that run at once")
    group.add_argument("--request-rate", type=float, default=float("inf"), help="arrivals a second")
    group.add_argument("--burstiness", type=float, default=1.0, help="1: Poisson, below: bursts")
    group.add_argument("--num-warmups", type=int, default=1, help="requests that do not count")
    group.add_argument(
        "--baseline",
        action="store_true",
        help="send every prompt a second time without speculation, by turns, and compare",
    )
    group.add_argument(
        "--rounds", type=count, default=3, help="turns of --baseline (default: %(default)s)"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        help=f"comma-separated, of {', '.join(METRICS)} (default: %(default)s)",
    )
    group.add_argument("--metric-percentiles", default="90,99", help="comma-separated")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="limits in milliseconds, such as ttft:200 tpot:50: how many requests met all of them",
    )
    group.add_argument(
        "--pd-metrics",
        action="store_true",
        help="tell the first token (of prefill), the second (after the handoff) and others apart",
    )
    group.add_argument(
        "--worker-url",
        action="append",
        default=[],
        metavar="URL",
        help="of a decode server, whose handoffs --pd-metrics counts; servers that are started are "
        "known",
    )
    group.add_argument(
        "--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="into the JSON"
    )
    add_report_options(group)
    group.add_argument(
        "--save-result", action="store_true", help="write a JSON file of its own name"
    )
    group.add_argument("--save-detailed", action="store_true", help="with every request in it")
    group.add_argument("--result-dir", type=Path, default=Path())
    group.add_argument("--result-filename", help="default: from backend, load, model and date")


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.dataset_name == "custom":
        options.dataset_name = "jsonl"
    if options.dataset_name in ("jsonl", "sharegpt") and options.dataset_path is None:
        parser.error(f"--dataset-name {options.dataset_name} needs --dataset-path FILE")
    if options.config and options.base_url:
        parser.error("--config starts servers, --base-url names one that runs; give one of them")
    if not options.config:
        for name in ("speculative_config", "scheduler_topic", "launch_options"):
            if getattr(options, name):
                flag = "--" + name.replace("_", "-")
                parser.error(f"{flag} is for servers that are started; it needs --config FILE.yaml")
    if not 0 <= options.random_range_ratio < 1:
        parser.error("--random-range-ratio must be at least 0 and below 1")
    options.percentile_metrics = options.percentile_metrics.split(",")
    for name in options.percentile_metrics:
        if name not in METRICS:
            parser.error(f"--percentile-metrics: {name!r} is not one of {', '.join(METRICS)}")
    try:
        options.metric_percentiles = [float(x) for x in options.metric_percentiles.split(",")]
        options.goodput = {
            name: float(limit) for name, _, limit in (x.partition(":") for x in options.goodput)
        }
        options.metadata = dict(_pair(text) for text in options.metadata)
    except ValueError as error:
        parser.error(f"--metric-percentiles, --goodput or --metadata: {error}")
    for name in options.goodput:
        if name not in GOODPUT:
            parser.error(f"--goodput: {name!r} is not one of {', '.join(GOODPUT)}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


def _body(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Any]:
    """Further fields of every request: the file's, then those of flags, then --extra-body."""
    body: dict[str, Any] = {"temperature": 0.0}
    if options.hyperparameter_path:
        try:
            fields = yaml.safe_load(options.hyperparameter_path.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            parser.error(f"--hyperparameter-path {options.hyperparameter_path}: {error}")
        if not isinstance(fields, dict):
            parser.error(f"--hyperparameter-path {options.hyperparameter_path}: must hold a map")
        body |= fields
    flags = {
        name: getattr(options, name) for name in _SAMPLING if getattr(options, name) is not None
    }
    if "logprobs" in flags and options.endpoint == CHAT_ENDPOINT:
        flags |= {"logprobs": True, "top_logprobs": flags["logprobs"]}
    if options.ignore_eos:
        flags["ignore_eos"] = True
    if not isinstance(options.extra_body, dict):
        parser.error(f"--extra-body must be a JSON object, got {options.extra_body!r}")
    return {**body, **flags, **options.extra_body}
