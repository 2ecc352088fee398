# SPDX-License-Identifier: Apache-2.0
"""Tokens per step of each method, counted by replaying answers instead of timing them.

A draft is accepted exactly where it equals the answer, so the figures are those of a real run and
do not depend on the machine; only the length of adaptive drafts depends on the cost of a row, which
is taken as typical. Each prompt is answered once plainly, then replayed twice with every method.

    python -m benchmarks.bench_replay --output replay.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.arguments import count
from benchmarks.bench_spec import METHODS
from benchmarks.report import add_report_options, print_table, write_report
from benchmarks.workloads import prompts_by_kind
from fdspec import LLM, SamplingParams
from fdspec.config import config_from_options
from fdspec.core import (
    DraftContext,
    FinishReason,
    ModelOutput,
    SequenceId,
    SequencePlan,
    StepPlan,
    Verdict,
)
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.registry import build_proposer
from fdspec.spec_decode.step_costs import TYPICAL_COSTS

# What the model says in the window of lookahead is not in its answers.
_REPLAYED = {name: options for name, options in METHODS.items() if name != "lookahead"}
_NO_OUTPUT = ModelOutput(np.empty((0, 1), np.float32), np.zeros(1, np.int64))


@dataclass
class Counts:
    """Of some replayed answers.

    Attributes:
        num_tokens: after the first one of each answer, which ends the prompt's step.
        num_steps, num_rows, num_accepted: steps, draft rows and accepted drafts they took.
    """

    num_tokens: int = 0
    num_steps: int = 0
    num_rows: int = 0
    num_accepted: int = 0

    def __str__(self) -> str:
        per_step = self.num_tokens / max(self.num_steps, 1)
        time = self.num_steps + TYPICAL_COSTS.row * self.num_rows
        share = 100 * self.num_accepted / max(self.num_rows, 1)
        return f"{per_step:.2f} ({share:.0f} %, x{self.num_tokens / max(time, 1):.2f})"


@dataclass(frozen=True)
class Answer:
    """A prompt and what plain decoding made of it, as token ids."""

    prompt: list[int]
    output: list[int]


def replay(
    proposer: Proposer, answer: Answer, params: SamplingParams, key: SequenceId, counts: Counts
) -> None:
    """One request from its prompt to its end."""
    tokens = np.array([*answer.prompt, *answer.output], np.int32)
    known = num_prompt = len(answer.prompt)
    end = len(tokens)
    while known < end:
        left = end - known - 1
        draft, kept = None, []
        if known > num_prompt and left > 0:
            context = DraftContext(key, tokens[:known], num_prompt, left, params)
            for draft in proposer.propose([context]):
                kept = accepted(draft.tokens, draft.parents, tokens[known:-1])
                counts.num_rows += len(draft)
        new = tuple(tokens[known : known + len(kept) + 1].tolist())
        start = known - 1 if known > num_prompt else 0
        plan = SequencePlan(key, start, tokens[:known], num_prompt, draft, (), params, samples=True)
        finish = FinishReason.LENGTH if known + len(new) == end else None
        num_drafted = 0 if draft is None else len(draft)
        verdict = Verdict(key, new, tuple(kept), num_drafted, finish=finish)
        proposer.observe(StepPlan(0, (plan,)), _NO_OUTPUT, [verdict])
        if known > num_prompt:
            counts.num_steps += 1
            counts.num_tokens += len(new)
            counts.num_accepted += len(kept)
        known += len(new)
    proposer.forget([key])


def accepted(
    tokens: Sequence[int] | np.ndarray,
    parents: Sequence[int] | np.ndarray,
    future: Sequence[int] | np.ndarray,
) -> list[int]:
    """Rows of a draft that follow the tokens to come, in path order."""
    kept: list[int] = []
    for row, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        is_next = parent == (kept[-1] if kept else -1)
        if is_next and len(kept) < len(future) and token == future[len(kept)]:
            kept.append(row)
    return kept


def main() -> None:
    """Answer, replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/yaml/quickstart.yaml", help="YAML file")
    parser.add_argument("--prompts", type=count, default=8, help="most prompts of a kind")
    parser.add_argument("--max-tokens", type=count, default=128, help="tokens of an answer")
    parser.add_argument("--fixed-length", action="store_true", help="no adaptive draft length")
    add_report_options(parser, has_plot=False)
    arguments = parser.parse_args()
    greedy = SamplingParams(max_tokens=arguments.max_tokens, temperature=0.0)
    answers: dict[str, list[Answer]] = {}
    with LLM(config=arguments.config, speculative_config="off") as llm:
        for kind, texts in prompts_by_kind().items():
            messages = [[{"role": "user", "content": t}] for t in texts[: arguments.prompts]]
            outputs = llm.chat(messages, greedy)
            answers[kind] = [
                Answer(list(o.prompt_token_ids), list(o.outputs[0].token_ids)) for o in outputs
            ]
        vocab_size = llm.tokenizer.vocab_size
    report: dict[str, dict[str, Counts]] = {}
    for method, options in _REPLAYED.items():
        values = {**options, "adaptive_draft_length": not arguments.fixed_length}
        config = config_from_options({"model": "m", "speculative_config": values}).config
        proposer = build_proposer(config.speculative, vocab_size=vocab_size).proposer
        report[method] = {}
        for kind, known in answers.items():
            for ask in ("first", "again"):
                counts = report[method][f"{kind}, {ask}"] = Counts()
                for index, answer in enumerate(known):
                    prediction = tuple(answer.output) if method == "prediction" else ()
                    params = replace(greedy, prediction=prediction)
                    replay(proposer, answer, params, (f"{kind} {ask} {index}", 0), counts)
    print("tokens per step (drafts accepted, expected speed-up)")
    header = ["prompts", *report]
    columns = [list(counts.values()) for counts in report.values()]
    print_table(
        header, [[name, *row] for name, *row in zip(report["ngram"], *columns, strict=True)]
    )
    write_report(arguments, report)


if __name__ == "__main__":
    main()
