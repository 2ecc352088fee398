# SPDX-License-Identifier: Apache-2.0
"""What a draft costs the processor, against the length of the context; and what silence costs.

Texts are built from the bundled one; processor time of one thread, so that a busy machine does not
show. Needs no model.

    python -m benchmarks.bench_propose --output propose.json --plot propose.png
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import count
from benchmarks.bench_spec import METHODS as CONFIGS
from benchmarks.datasets import corpus_text
from benchmarks.report import (
    Spread,
    add_report_options,
    load_pyplot,
    machine,
    print_table,
    save_plot,
    short,
    write_report,
)
from fdspec.config import config_from_options
from fdspec.core import (
    Draft,
    DraftContext,
    ModelOutput,
    SamplingParams,
    SequenceId,
    SequencePlan,
    StepPlan,
    Verdict,
)
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.lookahead import LookaheadProposer
from fdspec.spec_decode.memory import MemoryProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.registry import build_proposer
from fdspec.spec_decode.suffix import SuffixProposer

BATCHES = (1, 16)
_PROMPT = 512
_VOCABULARY = 40_000
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
MAX_DRAFT = 16
METHODS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NgramProposer(MAX_DRAFT),
    "suffix": lambda: SuffixProposer(MAX_DRAFT),
    "memory": lambda: MemoryProposer(MAX_DRAFT),
    "lookahead": lambda: LookaheadProposer(),
}


@dataclass(frozen=True)
class Cost:
    """Of one method at one length.

    Attributes:
        propose_us: of a draft for one sequence, with the token that was added before it.
        follow_us: of each token of the prompt, taken in once.
    """

    propose_us: Spread
    follow_us: float


def word_ids(length: int) -> NDArray[np.int32]:
    """The words of the bundled text as numbers, again and again with every fifth one changed."""
    words = corpus_text().split()
    known = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = np.array([known[word] for word in words], np.int32)
    text = np.tile(ids, -(-length // len(ids)))[:length]
    source = np.random.default_rng(0)
    changed = np.arange(len(ids), length, 5)
    text[changed] = source.integers(0, len(known), len(changed))
    return text


def measure(make: Callable[[], Proposer], length: int, num_drafts: int, rounds: int) -> Cost:
    """Drafts at the end of a context of `length` tokens."""
    text = word_ids(length + num_drafts)
    costs, follow_us = [], 0.0
    for _ in range(rounds):
        proposer = make()
        start_s = time.process_time()
        proposer.propose([DraftContext(("r", 0), text[:length], length // 2, MAX_DRAFT)])
        follow_us = (time.process_time() - start_s) * 1e6 / length
        start_s = time.process_time()
        for end in range(length + 1, length + num_drafts):
            proposer.propose([DraftContext(("r", 0), text[:end], length // 2, MAX_DRAFT)])
        costs.append((time.process_time() - start_s) * 1e6 / (num_drafts - 1))
    return Cost(Spread.of(costs), follow_us)


@dataclass(frozen=True)
class Silence:
    """What a method costs where nothing can be guessed.

    Attributes:
        propose_us, observe_us: of a sequence in a step.
        rows: drafted for a sequence in a step.
    """

    propose_us: float
    observe_us: float
    rows: float


def measure_silence(options: dict[str, Any], batch: int, num_steps: int) -> Silence:
    """Answers of random tokens to prompts of random tokens, without a model."""
    config = config_from_options({"model": "m", "speculative_config": options}).config.speculative
    assert config is not None
    proposer = build_proposer(config, vocab_size=_VOCABULARY).proposer
    source = np.random.default_rng(0)
    params = SamplingParams(max_tokens=num_steps + 2, temperature=1.0, seed=1)
    texts = source.integers(0, _VOCABULARY, (batch, _PROMPT + num_steps + 1)).astype(np.int32)
    keys = [(f"sequence {index}", 0) for index in range(batch)]
    no_output = ModelOutput(np.empty((0, 1), np.float32), np.zeros(batch + 1, np.int64))
    propose_s = observe_s = 0.0
    num_rows = 0
    for length in range(_PROMPT, _PROMPT + num_steps):
        drafts: dict[SequenceId, Draft] = {}
        if length > _PROMPT:
            contexts = [
                DraftContext(key, text[:length], _PROMPT, config.draft_rows, params)
                for key, text in zip(keys, texts, strict=True)
            ]
            start_s = time.process_time()
            drafts = {draft.sequence_id: draft for draft in proposer.propose(contexts)}
            propose_s += time.process_time() - start_s
        num_rows += sum(map(len, drafts.values()))
        start = length - 1 if length > _PROMPT else 0
        sequences = tuple(
            SequencePlan(key, start, text[:length], _PROMPT, drafts.get(key), (), params, True)
            for key, text in zip(keys, texts, strict=True)
        )
        verdicts = [
            Verdict(key, (int(text[length]),), (), len(drafts.get(key, ())))
            for key, text in zip(keys, texts, strict=True)
        ]
        start_s = time.process_time()
        proposer.observe(StepPlan(length, sequences), no_output, verdicts)
        if length > _PROMPT:
            observe_s += time.process_time() - start_s
    steps = (num_steps - 1) * batch
    return Silence(propose_s * 1e6 / steps, observe_s * 1e6 / steps, num_rows / steps)


def plot(report: dict[str, dict[int, Cost]], path: Path) -> None:
    """A line for each method."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for method, costs in report.items():
        axes.plot(
            list(costs), [cost.propose_us.median for cost in costs.values()], "o-", label=method
        )
    axes.set(
        xscale="log", xlabel="tokens of context", ylabel="microseconds a draft", ylim=(0, None)
    )
    axes.legend()
    figure.tight_layout()
    save_plot(figure, path)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--drafts", type=count, default=500, help="drafts at each length")
    parser.add_argument("--rounds", type=count, default=5, help="repetitions")
    add_report_options(parser)
    arguments = parser.parse_args()
    report = {
        method: {
            length: measure(make, length, arguments.drafts + 1, arguments.rounds)
            for length in LENGTHS
        }
        for method, make in METHODS.items()
    }
    header = ["microseconds", *(f"{length} tokens" for length in LENGTHS)]
    rows = []
    for method, costs in report.items():
        rows.append([f"{method}: a draft", *(c.propose_us.short() for c in costs.values())])
        rows.append([f"{method}: a prompt token", *(short(c.follow_us) for c in costs.values())])
    print_table(header, rows)
    silence = {
        method: {batch: measure_silence(options, batch, arguments.drafts) for batch in BATCHES}
        for method, options in CONFIGS.items()
        if method != "prediction"
    }
    print()
    print_table(
        ["nothing to guess", "sequences", "propose, µs", "observe, µs", "draft rows a step"],
        [
            [method, str(batch), short(s.propose_us), short(s.observe_us), f"{s.rows:.3f}"]
            for method, by_batch in silence.items()
            for batch, s in by_batch.items()
        ],
    )
    write_report(
        arguments,
        {"machine": machine(), "methods": report, "silence": silence},
        lambda path: plot(report, path),
    )


if __name__ == "__main__":
    main()
