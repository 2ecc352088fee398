# SPDX-License-Identifier: Apache-2.0
"""What reading a shared prefix once saves: attention alone, and whole decode steps.

    python -m benchmarks.bench_shared_prefix --model models/SmolLM2-135M-Instruct.Q4_1.gguf

Sequences that begin with the same blocks decode one token each. "Flat" is the same call with an
empty sequence between every two, so that no neighbours share anything: the same kernel reads the
same memory, each sequence by itself. Both give the same bits, which is checked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.arguments import count
from benchmarks.report import (
    Spread,
    add_report_options,
    load_pyplot,
    machine,
    print_table,
    save_plot,
    write_report,
)
from fdspec import ops
from fdspec.config import RopeScalingConfig
from fdspec.models import ModelOptions, RopeOverride, load_model
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.worker.batch import Batch
from fdspec.worker.model_runner import ModelRunner

BLOCK_SIZE = 64
OWN_TOKENS = 64


class Figure(NamedTuple):
    """One size.

    Attributes:
        num_shared: tokens of the prefix.
        num_rows: sequences, one row each.
        attention_ratio: time of attention, grouped over flat.
        grouped_tokens_per_s, flat_tokens_per_s: of whole steps.
    """

    num_shared: int
    num_rows: int
    attention_ratio: Spread
    grouped_tokens_per_s: Spread
    flat_tokens_per_s: Spread


def decode_batch(num_rows: int, num_shared: int) -> Batch:
    """A step of sequences with a common prefix and OWN_TOKENS of their own."""
    context = num_shared + OWN_TOKENS
    num_common = num_shared // BLOCK_SIZE
    own = num_common + 2 * np.arange(num_rows, dtype=np.int32)[:, None] + np.arange(2)
    common = np.broadcast_to(np.arange(num_common), (num_rows, num_common))
    table = np.concatenate([common, own], axis=1).astype(np.int32)
    slots = table[:, context // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + context % BLOCK_SIZE
    return Batch(
        token_ids=np.arange(5, 5 + num_rows, dtype=np.int32),
        positions=np.full(num_rows, context, np.int32),
        slots=slots,
        block_table=table,
        row_splits=np.arange(num_rows + 1, dtype=np.int32),
        context_lens=np.full(num_rows, context, np.int32),
        parents=np.full(num_rows, -1, np.int32),
        logit_rows=np.arange(num_rows, dtype=np.int64),
        logit_splits=np.arange(num_rows + 1, dtype=np.int64),
    )


def flat(batch: Batch) -> Batch:
    """The same rows with a sequence without rows behind each."""
    table = np.zeros((2 * len(batch.block_table), batch.block_table.shape[1]), np.int32)
    table[::2] = batch.block_table
    contexts = np.zeros(len(table), np.int32)
    contexts[::2] = batch.context_lens
    splits = np.repeat(batch.row_splits, 2)[1:]
    return replace(batch, block_table=table, context_lens=contexts, row_splits=splits)


def attention_call(runner: ModelRunner, batch: Batch) -> Callable[[], Any]:
    """Attention of the batch in one layer after the other."""
    config = runner.model.config
    shape = (len(batch.token_ids), config.num_heads, config.head_dim)
    query = np.random.default_rng(0).standard_normal(shape, np.float32)

    def call() -> list[Any]:
        return [
            ops.cascade_append_attention(
                query,
                layer.key,
                layer.value,
                batch.block_table,
                batch.row_splits,
                batch.context_lens,
                batch.parents,
                config.head_dim**-0.5,
            )
            for layer in runner.cache.layers
        ]

    return call


def step_call(program: ops.StepProgram, batch: Batch) -> Callable[[], Any]:
    """A whole step, to the best token of each row."""
    tokens = np.empty(len(batch.token_ids), np.int32)

    def call() -> Any:
        program.run(
            batch.token_ids,
            batch.positions,
            slots=batch.slots,
            block_table=batch.block_table,
            row_splits=batch.row_splits,
            context_lens=batch.context_lens,
            parents=batch.parents,
            selected_rows=batch.logit_rows,
            out=tokens,
        )
        return tokens.copy()

    return call


def in_turn(calls: Sequence[Callable[[], Any]], num_rounds: int) -> list[list[float]]:
    """Seconds of each call in each round."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(num_rounds + 1):
        for index in range(len(calls)):
            place = (index + number) % len(calls)
            started_s = time.perf_counter()
            calls[place]()
            if number > 0:
                times[place].append(time.perf_counter() - started_s)
    return times


def measure(model: LlamaFamilyModel, num_rows: int, num_shared: int, num_rounds: int) -> Figure:
    """Grouped and flat in turn."""
    num_blocks = num_shared // BLOCK_SIZE + 2 * num_rows
    runner = ModelRunner(model, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    try:
        random = np.random.default_rng(0)
        slots = np.arange(num_blocks * BLOCK_SIZE, dtype=np.int64)
        config = model.config
        entries = random.standard_normal(
            (len(slots), config.num_kv_heads, config.head_dim), np.float32
        )
        for layer in runner.cache.layers:
            ops.append_paged_kv(entries, entries, layer.key, layer.value, slots)
        grouped = decode_batch(num_rows, num_shared)
        batches = (grouped, flat(grouped))
        attentions = [attention_call(runner, batch) for batch in batches]
        for one, other in zip(attentions[0](), attentions[1](), strict=True):
            assert np.array_equal(one, other), "grouped and flat attention differ"
        attention_s = in_turn(attentions, num_rounds)
        program = model.lower(runner.cache.layers)
        steps = [step_call(program, batch) for batch in batches]
        assert np.array_equal(steps[0](), steps[1]()), "grouped and flat steps differ"
        step_s = in_turn(steps, num_rounds)
        return Figure(
            num_shared,
            num_rows,
            Spread.of(one / other for one, other in zip(*attention_s, strict=True)),
            *(Spread.of(num_rows / s for s in seconds) for seconds in step_s),
        )
    finally:
        runner.close()


def plot(figures: Sequence[Figure], path: Path) -> None:
    """Ratio of attention over rows, a line for each prefix."""
    figure, axes = load_pyplot().subplots(figsize=(6, 4))
    for num_shared in sorted({f.num_shared for f in figures}):
        points = [(f.num_rows, f.attention_ratio.median) for f in figures if f[0] == num_shared]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{num_shared} tokens shared")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="sequences", ylabel="attention time, grouped / flat")
    axes.legend()
    save_plot(figure, path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--rows", type=count, nargs="+", default=(1, 2, 4, 8, 16, 32))
    parser.add_argument("--shared", type=count, nargs="+", default=(2048, 8192), help="tokens")
    parser.add_argument("--threads", type=count, help="default: all processors")
    parser.add_argument("--rounds", type=count, default=7)
    add_report_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    if options.threads:
        ops.set_num_threads(options.threads)
    longest = max(options.shared) + OWN_TOKENS + 1
    # Lengths beyond the model's own: what it would say does not matter here.
    stretched = RopeOverride(scaling=RopeScalingConfig(type="linear", factor=8.0))
    model = load_model(Path(options.model), ModelOptions(max_model_len=longest, rope=stretched))
    figures = [
        measure(model, num_rows, num_shared, options.rounds)
        for num_shared in options.shared
        for num_rows in options.rows
    ]
    print_table(
        ["shared", "rows", "attention, grouped / flat", "tokens/s grouped", "tokens/s flat"],
        [(f[0], f[1], f[2].short(), f[3].short(), f[4].short()) for f in figures],
    )
    write_report(
        options, {"machine": machine(), "figures": figures}, lambda path: plot(figures, path)
    )


if __name__ == "__main__":
    main()
