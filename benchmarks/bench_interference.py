# SPDX-License-Identifier: Apache-2.0
"""A long prompt arrives among running streams: what it costs them, and what it waits for them.

One engine computes prompts and decodes in the same steps. For each way to cut the prompt it
measures the time between the tokens of the streams before the prompt comes and while it is
computed, and the prompt's time to first token beside the same on an idle engine. `whole` computes
it in one step, `chunks` in chunks of max_num_batched_tokens, `limited` in chunks that keep a step
below max_step_ms.

    python -m benchmarks.bench_interference --output interference.json

With --split it measures servers instead, see split_interference.py.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.report import (
    Spread,
    add_report_options,
    machine,
    percentile,
    print_table,
    write_report,
)
from benchmarks.split_interference import (
    measure_split,
    plot_split,
    print_split,
    summarise_split,
)
from fdspec.config import config_from_options
from fdspec.core import Abort, SamplingParams, Submit
from fdspec.engine.build import BuiltEngine, build_engine
from fdspec.scheduler.topic import InProcessTopic

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
WARM_UP_STEPS = 30


@dataclass(frozen=True)
class Figures:
    """One round.

    Attributes:
        before_ms: median time between two tokens of a stream before the prompt comes.
        during_ms: 99th percentile while it is computed.
        first_token_ms: from the prompt's arrival to its first token.
        idle_first_token_ms: the same without streams.
    """

    before_ms: float
    during_ms: float
    first_token_ms: float
    idle_first_token_ms: float


class Bench:
    """An engine, and prompts of random tokens that no cache can know."""

    def __init__(self, options: argparse.Namespace, **engine_options: object) -> None:
        self._topic = InProcessTopic()
        self._built: BuiltEngine = build_engine(
            config_from_options(
                {
                    "model": options.model,
                    "max_model_len": options.prompt + options.stream_tokens,
                    "max_num_seqs": options.streams + 1,
                    **engine_options,
                }
            ).config,
            self._topic,
        )
        self._names = map(str, itertools.count())
        self._source = random.Random(0)

    def submit(self, num_prompt: int, max_tokens: int) -> str:
        """Send a request; returns its id."""
        name = next(self._names)
        vocab_size = self._built.ready.vocab_size
        prompt = tuple(self._source.randrange(vocab_size) for _ in range(num_prompt))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0)
        self._topic.send(Submit(name, prompt, params))
        return name

    def steps_ms(self, num_steps: int) -> list[float]:
        """Times of so many steps."""
        return [self._step()[1] for _ in range(num_steps)]

    def until_first_token_ms(self, name: str) -> list[float]:
        """Times of the steps up to the one that gives the first token of a request."""
        times_ms = []
        while True:
            ids, step_ms = self._step()
            times_ms.append(step_ms)
            if name in ids:
                return times_ms

    def until_started(self, names: Sequence[str]) -> None:
        """Step until every request has given a token."""
        waiting = set(names)
        while waiting:
            waiting -= self._step()[0]

    def end(self, names: Sequence[str]) -> None:
        """Abort requests."""
        for name in names:
            self._topic.send(Abort(name))
        self._step()

    def close(self) -> None:
        """Free the engine's memory."""
        self._built.close()

    def _step(self) -> tuple[set[str], float]:
        start_s = time.perf_counter()
        events = self._built.engine.step()
        return {event.request_id for event in events}, 1000 * (time.perf_counter() - start_s)


def measure(bench: Bench, options: argparse.Namespace) -> Figures:
    """One round."""
    alone = bench.submit(options.prompt, 1)
    idle_ms = sum(bench.until_first_token_ms(alone))
    streams = [bench.submit(options.context, options.stream_tokens) for _ in range(options.streams)]
    bench.until_started(streams)
    bench.steps_ms(WARM_UP_STEPS)
    before_ms = bench.steps_ms(options.steps)
    late = bench.submit(options.prompt, 1)
    during_ms = bench.until_first_token_ms(late)
    bench.end(streams)
    return Figures(percentile(before_ms, 50), percentile(during_ms, 99), sum(during_ms), idle_ms)


def summarise(rounds: Sequence[Figures]) -> dict[str, Any]:
    """Spreads of the figures and of their ratios, which are taken inside a round."""
    return {
        "before_ms": Spread.of(r.before_ms for r in rounds),
        "during_ms": Spread.of(r.during_ms for r in rounds),
        "gap_ratio": Spread.of(r.during_ms / r.before_ms for r in rounds),
        "first_token_ms": Spread.of(r.first_token_ms for r in rounds),
        "idle_first_token_ms": Spread.of(r.idle_first_token_ms for r in rounds),
        "first_token_ratio": Spread.of(r.first_token_ms / r.idle_first_token_ms for r in rounds),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All modes; the limit of `limited` is a multiple of what `chunks` has before the prompt."""
    whole = options.prompt + options.stream_tokens
    modes: dict[str, dict[str, object]] = {
        "whole": {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": whole + options.streams,
        },
        "chunks": {},
        "limited": {},
    }
    results: dict[str, Any] = {}
    for name, engine_options in modes.items():
        if name == "limited":
            usual_ms = results["chunks"]["before_ms"].median
            engine_options["max_step_ms"] = options.max_step_ms or options.ratio * usual_ms
        bench = Bench(options, **engine_options)
        rounds = [measure(bench, options) for _ in tqdm(range(options.rounds), desc=name)]
        bench.close()
        results[name] = {"options": engine_options, **summarise(rounds)}
    return results


def print_report(results: dict[str, Any]) -> None:
    """One line for each mode."""
    print_table(
        ["prompt", "p50 before, ms", "p99 during, ms", "p99 / p50", "first token, ms", "/ idle"],
        [
            [
                name,
                *(
                    result[key].short()
                    for key in (
                        "before_ms",
                        "during_ms",
                        "gap_ratio",
                        "first_token_ms",
                        "first_token_ratio",
                    )
                ),
            ]
            for name, result in results.items()
        ],
    )
    print(f"max_step_ms of `limited`: {results['limited']['options']['max_step_ms']:.1f}")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL, help="folder or GGUF file")
    parser.add_argument(
        "--split",
        action="store_true",
        help="over HTTP: prefill and decode servers with a processor each against a mixed one",
    )
    parser.add_argument("--streams", type=count, help="sequences that decode (8; --split: 4)")
    parser.add_argument("--context", type=count, default=128, help="prompt tokens of each of them")
    parser.add_argument("--prompt", type=count, help="tokens of the long prompt (4096; 1024)")
    parser.add_argument("--stream-tokens", type=count, default=2048, help="most tokens of a stream")
    parser.add_argument("--steps", type=count, default=60, help="steps before the prompt comes")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--ratio", type=float, default=1.7, help="max_step_ms over p50 before")
    parser.add_argument("--max-step-ms", type=float, help="instead of --ratio")
    parser.add_argument("--every", type=float, default=3.0, help="--split: seconds between prompts")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="--split: of a round and server"
    )
    parser.add_argument(
        "--chunk", type=count, help="--split: of the second mixed server; default: looked for"
    )
    add_report_options(parser)
    options = parser.parse_args(arguments)
    if options.plot and not options.split:
        parser.error("--plot is for --split")
    options.streams = options.streams or (4 if options.split else 8)
    options.prompt = options.prompt or (1024 if options.split else 4096)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    if options.split:
        measured = measure_split(options)
        split = summarise_split(measured)
        print_split(split)
        report = {"machine": machine(), "servers": split}
        write_report(options, report, lambda path: plot_split(measured, path))
        return
    results = run(options)
    print_report(results)
    write_report(options, {"machine": machine(), "modes": results})


if __name__ == "__main__":
    main()
