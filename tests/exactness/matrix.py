# SPDX-License-Identifier: Apache-2.0
"""The exactness matrix: every two circumstances under which an answer may be made meet in a run.

Each run answers every request of a world twice, so that what was remembered of the first time is
drafted the second time, and compares all tokens, logprobs and stops with plain decoding's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fdspec.config import SpeculativeConfig
from fdspec.core import Submit
from fdspec.spec_decode.registry import build_proposer
from tests.exactness.worlds import World
from tests.fakes.exactness import Results, Setting, compare, run

MEMBERS = ("suffix", "memory", "ngram", "lookahead")
METHODS = (*MEMBERS, "prediction", "hybrid", "mixed")
"""`mixed` has a hybrid, and each request of a batch asks it for another method."""

CIRCUMSTANCES: dict[str, tuple[Any, ...]] = {
    "draft_length": ("adaptive", "full"),
    "kv_cache": ("float32", "bfloat16", "int8"),
    # 9 blocks of 16 tokens hold little more than the longest request: they force preemptions.
    "blocks": (9, 200),
    "swap_slots": (0, 5, 60),
    # Prompts of up to 90 tokens come in chunks, and drafts of up to 30 tokens are cut short.
    "rows_in_a_step": (16, 64, 256),
    "sequences_at_once": (1, 7, 16),
    "prefix_cache": (True, False),
    "requests_a_step": (1, 5),
}
"""Greedy and seeded requests, with all processors and stops, are in every run."""


def all_pairs(dimensions: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Few combinations in which every two values of different dimensions occur together.

    Greedy: each combination takes the values that cover most of what is missing.
    """
    names = list(dimensions)
    missing = {
        ((one, i), (other, j))
        for one, other in itertools.combinations(names, 2)
        for i in range(len(dimensions[one]))
        for j in range(len(dimensions[other]))
    }
    rows = []
    while missing:
        row = dict(min(missing))
        for name in names:
            if name not in row:
                row[name] = max(
                    range(len(dimensions[name])),
                    key=lambda value, name=name, row=row: len(  # type: ignore[misc]
                        missing & set(_pairs_with(names, row, name, value))
                    ),
                )
        missing -= {
            ((one, row[one]), (other, row[other]))
            for one, other in itertools.combinations(names, 2)
        }
        rows.append({name: dimensions[name][row[name]] for name in names})
    return rows


def _pairs_with(
    names: Sequence[str], row: Mapping[str, int], name: str, value: int
) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Pairs that a row would have if `name` had a value, in the order of the names."""
    for other, chosen in row.items():
        pair = sorted(((other, chosen), (name, value)), key=lambda one: names.index(one[0]))
        yield pair[0], pair[1]


@dataclass
class Tally:
    """What happened in some runs: all of it must have happened for them to prove anything."""

    num_tokens: int = 0
    num_accepted: int = 0
    num_preempted: int = 0
    num_swapped: int = 0
    num_prefix_hits: int = 0


def config_of(method: str, draft_length: str) -> SpeculativeConfig:
    """The speculation of a run."""
    is_adaptive = draft_length == "adaptive"
    if method in ("hybrid", "mixed"):
        members = tuple(SpeculativeConfig(method=name) for name in MEMBERS)
        return SpeculativeConfig(
            method="hybrid", proposers=members, adaptive_draft_length=is_adaptive
        )
    return SpeculativeConfig(method=method, adaptive_draft_length=is_adaptive)


def requests(world: World, method: str) -> tuple[list[Submit], Results]:
    """Every request twice, and what it must yield; every third one predicts its own output.

    With `prediction` all of them do, as nothing would be drafted otherwise.
    """
    submits: list[Submit] = []
    expected: Results = {}
    twice = [(submit, copy) for copy in "ab" for submit in world.submits]
    for index, (submit, copy) in enumerate(twice):
        name = f"{submit.request_id}{copy}"
        for choice in range(submit.params.n):
            expected[name, choice] = world.expected[submit.request_id, choice]
        params = submit.params
        if index % 3 == 0 or method == "prediction":
            tokens = world.expected[submit.request_id, 0].tokens
            params = replace(params, prediction=(*tokens[:5], 9, *tokens[7:]))
        if method == "mixed":
            params = replace(params, draft_method=(None, *MEMBERS)[index % (1 + len(MEMBERS))])
        salt = str(index % 2)
        submits.append(replace(submit, request_id=name, params=params, cache_salt=salt))
    return submits, expected


def check(world: World, method: str, circumstances: Mapping[str, Any], tally: Tally) -> None:
    """One run; raises AssertionError if an answer is not plain decoding's."""
    setting = Setting(
        circumstances["sequences_at_once"],
        circumstances["rows_in_a_step"],
        circumstances["blocks"],
        circumstances["prefix_cache"],
        circumstances["swap_slots"],
    )
    config = config_of(method, circumstances["draft_length"])
    proposer = build_proposer(config, vocab_size=world.vocab_size, eos_ids=(world.eos_id,)).proposer
    engine = world.make_engine(proposer, setting)
    submits, expected = requests(world, method)
    results = run(engine, submits, arrivals_per_step=circumstances["requests_a_step"])
    tally.num_tokens += compare(expected, results)
    tally.num_accepted += sum(result.num_accepted for result in results.values())
    stats = engine.monitor.stats()
    tally.num_preempted += stats.num_preempted_total
    tally.num_swapped += stats.num_swapped_total
    tally.num_prefix_hits += stats.num_prefix_hits_total
