# SPDX-License-Identifier: Apache-2.0
"""What each method of speculation gains on each kind of prompt, pair by pair.

Every prompt is answered plainly, with drafts, and with drafts once more, in one process; a speed-up
is plain time over drafting time, by the clock, or by the processor's time, in which other programs
do not show. Every answer of a prompt must have the same tokens, greedy or sampled; the program
fails if one differs.

    python -m benchmarks.bench_spec --methods ngram suffix memory --output spec.json --plot spec.png
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.report import Spread, load_pyplot, machine, print_table, save_plot, write_json
from benchmarks.workloads import prompts_by_kind
from fdspec import LLM, SamplingParams
from fdspec.entrypoints.outputs import CompletionOutput

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "memory": {"method": "memory"},
    "lookahead": {"method": "lookahead"},
    "hybrid": {"method": "hybrid", "proposers": [{"method": "suffix"}, {"method": "memory"}]},
    "prediction": {"method": "prediction"},
}
RANDOM = "random"
_RANDOM_PROMPTS = 320
_RANDOM_TOKENS = 64


Clock = Callable[[], float]
"""Gives seconds."""


@dataclass
class Result:
    """One method on one kind of prompt.

    Attributes:
        plain_tokens_per_s: without drafts.
        speed_up: of the first answer.
        speed_up_again: of the same answer, asked for again.
        tokens_per_step, acceptance_rate: of the first answers together.
        per_position: (drafted, accepted) by position in the draft, first answers.
        num_prompts: pairs measured.
    """

    plain_tokens_per_s: Spread
    speed_up: Spread
    speed_up_again: Spread
    tokens_per_step: float
    acceptance_rate: float
    per_position: list[tuple[int, int]] = field(default_factory=list)
    num_prompts: int = 0


@dataclass(frozen=True)
class Group:
    """Prompts that are answered at once.

    Attributes:
        prompts: token ids of each.
        params: how.
    """

    prompts: list[list[int]]
    params: SamplingParams


def answer(
    llm: LLM, group: Group, params: Sequence[SamplingParams], clock: Clock
) -> tuple[float, list[CompletionOutput]]:
    """Seconds that a group took, and its answers."""
    start_s = clock()
    outputs = llm.generate(group.prompts, list(params), use_tqdm=False)
    return clock() - start_s, [output.outputs[0] for output in outputs]


def tokens_of(outputs: Sequence[CompletionOutput]) -> list[tuple[int, ...]]:
    """The answers as tokens."""
    return [output.token_ids for output in outputs]


def measure(
    llm: LLM,
    groups: Sequence[Group],
    label: str,
    *,
    predict: bool,
    clock: Clock = time.perf_counter,
) -> Result:
    """Answer each group plainly and with drafts, in alternating order, then with drafts again.

    Raises:
        SystemExit: an answer has other tokens.
    """
    plain_rates, ratios, ratios_again = [], [], []
    first_outputs: list[CompletionOutput] = []
    for index, group in enumerate(tqdm(groups, desc=label, file=sys.stderr)):
        plain = [replace(group.params, max_draft_tokens=0)] * len(group.prompts)
        drafting = [group.params] * len(group.prompts)
        # Prompts are cached for all of them alike: what is compared is decoding.
        answer(llm, group, [replace(one, max_tokens=1) for one in plain], clock)
        if predict:
            _, known = answer(llm, group, plain, clock)
            drafting = [replace(group.params, prediction=tokens) for tokens in tokens_of(known)]
        runs = {}
        for name in ("plain", "first") if index % 2 == 0 else ("first", "plain"):
            runs[name] = answer(llm, group, plain if name == "plain" else drafting, clock)
        runs["again"] = answer(llm, group, drafting, clock)
        expected = tokens_of(runs["plain"][1])
        for name in ("first", "again"):
            if tokens_of(runs[name][1]) != expected:
                raise SystemExit(f"{label}: speculation changed an answer of group {index}")
        plain_s = runs["plain"][0]
        plain_rates.append(sum(map(len, expected)) / plain_s)
        ratios.append(plain_s / runs["first"][0])
        ratios_again.append(plain_s / runs["again"][0])
        first_outputs += runs["first"][1]
    drafts = [output.draft for output in first_outputs]
    positions = [0] * max((len(draft.per_position) for draft in drafts), default=0)
    per_position = [
        (
            sum(d.per_position[i][0] for d in drafts if i < len(d.per_position)),
            sum(d.per_position[i][1] for d in drafts if i < len(d.per_position)),
        )
        for i in range(len(positions))
    ]
    num_tokens = sum(len(output.token_ids) for output in first_outputs)
    return Result(
        Spread.of(plain_rates),
        Spread.of(ratios),
        Spread.of(ratios_again),
        num_tokens / sum(draft.num_steps for draft in drafts),
        sum(d.num_accepted for d in drafts) / max(sum(d.num_drafted for d in drafts), 1),
        per_position,
        len(first_outputs),
    )


def groups_of(llm: LLM, kind: str, arguments: argparse.Namespace) -> list[Group]:
    """The prompts of a kind, `--batch` at a time."""
    params = SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=1
    )
    if kind == RANDOM:
        source = random.Random(0)
        vocabulary = range(100, 40_000)
        # No kind of text: as many as are asked for.
        number = min(max(arguments.prompts, arguments.batch), _RANDOM_PROMPTS)
        prompts = [source.choices(vocabulary, k=_RANDOM_TOKENS) for _ in range(number)]
        params = replace(params, temperature=1.0, ignore_eos=True)
    else:
        texts = prompts_by_kind()[kind]
        prompts = [
            llm.tokenizer.encode(
                llm.tokenizer.apply_chat_template([{"role": "user", "content": text}], True)
            )
            for text in texts
        ]
    size = arguments.batch
    prompts = prompts[: max(arguments.prompts, size)]
    return [Group(prompts[i : i + size], params) for i in range(0, len(prompts), size)]


def show(report: dict[str, dict[str, Result]]) -> None:
    """A line for each method and kind."""
    header = [
        "method, kind",
        "plain, tokens/s",
        "speed-up",
        "asked again",
        "tokens/step",
        "accepted",
    ]
    rows = [
        [
            f"{method}, {kind}",
            result.plain_tokens_per_s.short(),
            result.speed_up.short(),
            result.speed_up_again.short(),
            f"{result.tokens_per_step:.2f}",
            f"{100 * result.acceptance_rate:.0f} %",
        ]
        for method, kinds in report.items()
        for kind, result in kinds.items()
    ]
    print_table(header, rows)


def plot(report: dict[str, dict[str, Result]], path: Path) -> None:
    """Acceptance by position: a picture for each method, a line for each kind."""
    pyplot = load_pyplot()
    figure, row = pyplot.subplots(1, len(report), figsize=(4 * len(report), 3.5), squeeze=False)
    for axes, (method, kinds) in zip(row[0], report.items(), strict=True):
        for kind, result in kinds.items():
            shares = [accepted / max(drafted, 1) for drafted, accepted in result.per_position]
            axes.plot(range(1, len(shares) + 1), shares, "o-", markersize=3, label=kind)
        axes.set(title=method, xlabel="position in the draft", ylim=(0, 1))
    row[0][0].set_ylabel("share accepted")
    row[0][0].legend()
    figure.tight_layout()
    save_plot(figure, path)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    kinds = [*prompts_by_kind(), RANDOM]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/yaml/quickstart.yaml", help="YAML file")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--prompts", type=count, default=24, help="most prompts of a kind")
    parser.add_argument("--max-tokens", type=count, default=128, help="tokens of an answer")
    parser.add_argument(
        "--quick", action="store_true", help="3 prompts of each kind and 48 tokens of an answer"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="one thread, and the time of its processor instead of the clock's",
    )
    parser.add_argument("--batch", type=count, default=1, help="prompts answered at once")
    parser.add_argument("--temperature", type=float, default=0.0, help="but 1 for random prompts")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="JSON, added to each speculative_config"
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--plot", type=Path, help="image to write (needs matplotlib)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.prompts, arguments.max_tokens = min(arguments.prompts, 3), 48
    return arguments


def main() -> None:
    """Measure, print, write."""
    arguments = parse_arguments()
    if arguments.plot:
        load_pyplot()
    report: dict[str, dict[str, Result]] = {}
    for method in arguments.methods:
        config = {**METHODS[method], **arguments.options}
        threads: dict[str, Any] = {"num_threads": 1} if arguments.cpu_time else {}
        with LLM(config=arguments.config, speculative_config=config, **threads) as llm:
            report[method] = {
                kind: measure(
                    llm,
                    groups_of(llm, kind, arguments),
                    f"{method}, {kind}",
                    predict=method == "prediction",
                    clock=time.process_time if arguments.cpu_time else time.perf_counter,
                )
                for kind in arguments.kinds
            }
    show(report)
    if arguments.output:
        settings = {key: str(value) for key, value in vars(arguments).items()}
        write_json(
            arguments.output, {"machine": machine(), "arguments": settings, "methods": report}
        )
    if arguments.plot:
        plot(report, arguments.plot)


if __name__ == "__main__":
    main()
