# SPDX-License-Identifier: Apache-2.0
"""Offline latency of one model at batch 1: decode, prefill, and what speculation gains.

Plain and speculative runs alternate inside one process, so that their ratio holds on a noisy
machine. Every answer of a pair must have the same tokens; the program fails if one differs.

    python -m benchmarks.bench_latency --config configs/yaml/quickstart.yaml --output latency.json

With --sampling it measures something else: what sampling costs beside greedy decoding, and how much
of a step is not the model.

    python -m benchmarks.bench_latency --sampling --rounds 9
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.report import (
    Spread,
    add_report_options,
    load_pyplot,
    machine,
    processor_name,
    save_plot,
    write_report,
)
from benchmarks.sampling_price import StepTimer, measure_sampling, print_sampling
from benchmarks.workloads import chat_messages, code_messages, extractive_messages, filler_text
from fdspec import LLM, SamplingParams
from fdspec.entrypoints.outputs import CompletionOutput
from fdspec.ops import num_threads, set_num_threads


def timed_generate(
    llm: LLM, prompt: list[int], params: SamplingParams
) -> tuple[float, CompletionOutput]:
    """Seconds that one prompt took, and its answer."""
    start_s = time.perf_counter()
    outputs = llm.generate([prompt], params, use_tqdm=False)
    return time.perf_counter() - start_s, outputs[0].outputs[0]


def timed_chat(
    llm: LLM, messages: list[dict[str, str]], params: SamplingParams
) -> tuple[float, CompletionOutput]:
    """Seconds that one conversation took, and its answer."""
    start_s = time.perf_counter()
    outputs = llm.chat([messages], params, use_tqdm=False)
    return time.perf_counter() - start_s, outputs[0].outputs[0]


def measure_prefill(llm: LLM, num_tokens: int, rounds: int) -> Spread:
    """Prompt tokens per second for a prompt of num_tokens; one output token, not counted.

    Every prompt starts at another token, so that no cache of prefixes can answer it.
    """
    token_ids = llm.tokenizer.encode(filler_text())
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    rates = []
    for index in range(rounds + 1):
        prompt = token_ids[index : index + num_tokens]
        seconds, _ = timed_generate(llm, prompt, params)
        rates.append(num_tokens / seconds)
    return Spread.of(rates[1:])


def measure_decode(llm: LLM, num_context: int, num_output: int, rounds: int) -> Spread:
    """Output tokens per second of plain decoding after num_context tokens, prefill excluded."""
    token_ids = llm.tokenizer.encode(filler_text())
    base = SamplingParams(temperature=0.0, ignore_eos=True, max_draft_tokens=0)
    rates = []
    for index in range(rounds + 1):
        prompt = token_ids[index : index + num_context]
        first_s, _ = timed_generate(llm, prompt, replace(base, max_tokens=1))
        all_s, _ = timed_generate(llm, prompt, replace(base, max_tokens=num_output))
        rates.append((num_output - 1) / (all_s - first_s))
    return Spread.of(rates[1:])


@dataclass(frozen=True)
class SpeculationResult:
    """Plain against speculative on the same prompts, pair by pair."""

    plain_tokens_per_s: Spread
    speculative_tokens_per_s: Spread
    speed_up: Spread
    tokens_per_step: float
    acceptance_rate: float
    num_pairs: int


def measure_speculation(
    llm: LLM, conversations: list[list[dict[str, str]]], num_output: int, label: str
) -> SpeculationResult:
    """Run each conversation plain and with drafts, in alternating order, and compare.

    Raises:
        SystemExit: if the tokens of a pair differ.
    """
    speculative = SamplingParams(max_tokens=num_output, temperature=0.0)
    plain = replace(speculative, max_draft_tokens=0)
    plain_rates, speculative_rates, ratios = [], [], []
    num_tokens = num_steps = num_drafted = num_accepted = 0
    for index, messages in enumerate(tqdm(conversations, desc=label, file=sys.stderr)):
        order = [plain, speculative] if index % 2 == 0 else [speculative, plain]
        runs = {}
        for params in order:
            runs[params.max_draft_tokens] = timed_chat(llm, messages, params)
        (plain_s, plain_output), (speculative_s, speculative_output) = runs[0], runs[None]
        if plain_output.token_ids != speculative_output.token_ids:
            raise SystemExit(f"{label}: speculation changed the answer to {messages}")
        count = len(plain_output.token_ids)
        plain_rates.append(count / plain_s)
        speculative_rates.append(count / speculative_s)
        ratios.append(plain_s / speculative_s)
        stats = speculative_output.draft
        num_tokens += count
        num_steps += stats.num_steps
        num_drafted += stats.num_drafted
        num_accepted += stats.num_accepted
    return SpeculationResult(
        Spread.of(plain_rates),
        Spread.of(speculative_rates),
        Spread.of(ratios),
        num_tokens / num_steps,
        num_accepted / max(num_drafted, 1),
        len(conversations),
    )


def print_table(report: dict[str, Any]) -> None:
    """The report as text, one figure a line."""
    print(f"\n{report['model']} on {report['machine']}, {report['num_threads']} threads")
    print(f"{'figure':44s} median  (low .. high)")
    for name, spread in report["prefill_tokens_per_s"].items():
        print(f"{f'prefill {name} tokens, tokens/s':44s} {spread}")
    for name, spread in report["decode_tokens_per_s"].items():
        print(f"{f'decode {name}, tokens/s':44s} {spread}")
    for name, result in report["speculation"].items():
        print(f"{f'{name}: plain, tokens/s':44s} {result.plain_tokens_per_s}")
        print(f"{f'{name}: speculative, tokens/s':44s} {result.speculative_tokens_per_s}")
        print(f"{f'{name}: speed-up':44s} {result.speed_up}")
        print(f"{f'{name}: tokens per step':44s} {result.tokens_per_step:8.2f}")
        print(f"{f'{name}: drafts accepted':44s} {100 * result.acceptance_rate:8.1f} %")


def plot(report: dict[str, Any], path: Path) -> None:
    """Speeds on the left; on the right how much faster the same answers came with drafts."""
    pyplot = load_pyplot()
    figure, (speeds, gains) = pyplot.subplots(1, 2, figsize=(12, 4))
    rates = {
        **{f"prefill {name}": s for name, s in report["prefill_tokens_per_s"].items()},
        **{f"decode {name}": s for name, s in report["decode_tokens_per_s"].items()},
    }
    ratios = {name: result.speed_up for name, result in report["speculation"].items()}
    for axes, spreads in ((speeds, rates), (gains, ratios)):
        medians = [s.median for s in spreads.values()]
        errors = [
            [s.median - s.low for s in spreads.values()],
            [s.high - s.median for s in spreads.values()],
        ]
        axes.barh(list(spreads), medians, xerr=errors)
        axes.invert_yaxis()
    speeds.set(xscale="log", xlabel="tokens/s")
    gains.set(xlabel="speed-up by speculation")
    gains.axvline(1.0, color="black", linewidth=1)
    figure.tight_layout()
    save_plot(figure, path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/yaml/quickstart.yaml", help="YAML file")
    parser.add_argument(
        "--speculative-config",
        type=json.loads,
        default={"method": "ngram", "num_speculative_tokens": 5},
        help="JSON object",
    )
    parser.add_argument("--rounds", type=count, default=5, help="repetitions of each figure")
    parser.add_argument(
        "--chat-prompts", type=count, default=20, help="pairs of free chat, up to 24"
    )
    parser.add_argument("--max-tokens", type=count, default=256, help="tokens of each answer")
    parser.add_argument("--threads", type=count, help="default: as configured")
    sampling = parser.add_argument_group("the price of sampling")
    sampling.add_argument(
        "--sampling", action="store_true", help="measure it, and none of the other figures"
    )
    sampling.add_argument(
        "--batch-sizes", type=count, nargs="+", default=(1, 16), help="sequences at a time"
    )
    sampling.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time instead of wall time; with --threads 1, for a busy machine",
    )
    add_report_options(parser)
    return parser.parse_args(arguments)


def run_sampling(arguments: argparse.Namespace) -> None:
    """Measure the price of sampling, print, write."""
    prices = {}
    for batch_size in arguments.batch_sizes:
        timer = StepTimer(
            arguments.config, batch_size, arguments.threads, counts_cpu_time=arguments.cpu_time
        )
        prices[batch_size] = measure_sampling(
            timer, chat_messages(), batch_size, arguments.max_tokens, arguments.rounds
        )
        timer.close()
    print_sampling(prices)
    report = {
        "machine": machine(),
        "config": arguments.config,
        "num_threads": num_threads(),
        "counts_cpu_time": arguments.cpu_time,
        "prices": prices,
    }
    write_report(arguments, report)


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    arguments = parse_arguments(command_line)
    if arguments.sampling:
        return run_sampling(arguments)
    llm = LLM(config=arguments.config, speculative_config=arguments.speculative_config)
    if arguments.threads:
        set_num_threads(arguments.threads)
    extractive = [extractive_messages()] * arguments.rounds
    code = [code_messages()] * arguments.rounds
    chat = chat_messages()[: arguments.chat_prompts]
    longest = llm.max_model_len - 1
    report = {
        "model": str(llm.model),
        "machine": processor_name(),
        "num_threads": num_threads(),
        "speculative_config": arguments.speculative_config,
        "prefill_tokens_per_s": {
            str(n): measure_prefill(llm, n, arguments.rounds)
            for n in (128, 512, 2048)
            if n <= longest
        },
        "decode_tokens_per_s": {
            "128 after 128": measure_decode(llm, 128, 128, arguments.rounds),
            "128 after 1024": measure_decode(llm, 1024, 128, arguments.rounds),
        },
        "speculation": {
            "extractive": measure_speculation(llm, extractive, 512, "extractive"),
            "code": measure_speculation(llm, code, arguments.max_tokens, "code"),
            "free chat": measure_speculation(llm, chat, arguments.max_tokens, "free chat"),
        },
    }
    print_table(report)
    write_report(arguments, report, lambda path: plot(report, path))


if __name__ == "__main__":
    main()
