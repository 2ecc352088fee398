# SPDX-License-Identifier: Apache-2.0
"""What the batch scheduler costs a step, without a model.

    python -m benchmarks.bench_scheduler --plot scheduler.png

Processor time of `plan` and `apply` of a step in which every running sequence decodes one token:
over the number of running sequences, with nothing and with much that is queued and cached; and
over what is queued and cached, with all running. It should grow with the running ones alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
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
from fdspec.core import SamplingParams, StepPlan, Submit, Verdict
from fdspec.kv.block_pool import BlockPool
from fdspec.kv.prefix_index import extend_digests, root_digest
from fdspec.scheduler.batch import BatchScheduler

BLOCK_SIZE = 64
PROMPT_TOKENS = 200
SHARED_TOKENS = 128
MAX_TOKENS = 4000


class Load(NamedTuple):
    """What the scheduler has to do with."""

    num_running: int
    num_queued: int
    num_cached: int


def loaded_scheduler(load: Load) -> BatchScheduler:
    """A scheduler whose running sequences all decode, two in three from a common prefix."""
    room = load.num_running * (-(-(PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE))
    pool = BlockPool(room + load.num_cached, BLOCK_SIZE)
    _fill_cache(pool, load.num_cached)
    scheduler = BatchScheduler(
        pool,
        vocab_size=50_000,
        max_num_seqs=load.num_running,
        max_num_batched_tokens=load.num_running * PROMPT_TOKENS,
        max_model_len=PROMPT_TOKENS + MAX_TOKENS,
    )
    params = SamplingParams(max_tokens=MAX_TOKENS, seed=0)
    for number in range(load.num_running + load.num_queued):
        common = range(SHARED_TOKENS if number % 3 else 0)
        own = range(1000 + number, 1000 + number + PROMPT_TOKENS - len(common))
        scheduler.add(Submit(str(number), (*common, *own), params, user=str(number % 7)))
    while scheduler.num_running < load.num_running:
        _step(scheduler)
    return scheduler


def _fill_cache(pool: BlockPool, num_blocks: int) -> None:
    """Sequences of eight blocks that nobody asks for again."""
    for first in range(0, num_blocks, 8):
        size = min(8, num_blocks - first)
        tokens = np.arange(first * BLOCK_SIZE, (first + size) * BLOCK_SIZE, dtype=np.int32)
        digests = [root_digest("cached")]
        extend_digests(digests, tokens, BLOCK_SIZE)
        block_ids = pool.allocate(size) or []
        for index, block_id in enumerate(block_ids):
            piece = tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            pool.publish(block_id, digests[index], piece, digests[index + 1])
        pool.release(reversed(block_ids))


def _step(scheduler: BatchScheduler) -> float:
    """One step; returns the milliseconds of processor time that plan and apply took."""
    started_s = time.process_time()
    plan = scheduler.plan(())
    planned_s = time.process_time()
    verdicts = _verdicts(plan)
    verified_s = time.process_time()
    scheduler.apply(plan, verdicts)
    return 1000 * (time.process_time() - verified_s + planned_s - started_s)


def _verdicts(plan: StepPlan) -> list[Verdict]:
    return [Verdict(s.sequence_id, (plan.step % 1000,)) for s in plan.sequences if s.samples]


def measure(load: Load, num_steps: int) -> Spread:
    """Milliseconds a step."""
    scheduler = loaded_scheduler(load)
    for _ in range(5):
        _step(scheduler)
    return Spread.of(_step(scheduler) for _ in range(num_steps))


def loads_of(options: argparse.Namespace) -> list[Load]:
    """All running with parts of the rest, then parts of the running."""
    full = Load(options.running, options.queued, options.cached)
    shares = (0.0, 0.25, 0.5, 1.0)
    loads = [full._replace(num_queued=int(share * full.num_queued)) for share in shares]
    loads += [full._replace(num_cached=int(share * full.num_cached)) for share in shares[:-1]]
    loads += [full._replace(num_running=max(full.num_running // part, 1)) for part in (8, 4, 2)]
    return loads


def plot(report: dict[str, Any], path: Path) -> None:
    """Three panels: time over running, queued and cached."""
    pyplot = load_pyplot()
    full = report["steps"][3][0]
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.5), sharey=True)
    for place, (axes, name) in enumerate(
        zip(panels, ("running", "queued", "cached blocks"), strict=True)
    ):
        points = sorted(
            (load[place], spread.median)
            for load, spread in report["steps"]
            if all(load[i] == full[i] for i in range(3) if i != place)
        )
        axes.plot(*zip(*points, strict=True), marker="o")
        axes.set(xlabel=name, ylim=(0, None))
        axes.grid(True, alpha=0.2)
    panels[0].set_ylabel("plan + apply, ms a step")
    save_plot(figure, path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=count, default=256, help="sequences that decode")
    parser.add_argument("--queued", type=count, default=10_000, help="requests that wait")
    parser.add_argument("--cached", type=count, default=100_000, help="blocks in the prefix cache")
    parser.add_argument("--steps", type=count, default=300, help="steps of each figure")
    add_report_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    steps = [(load, measure(load, options.steps)) for load in loads_of(options)]
    report: dict[str, Any] = {"machine": machine(), "unit": "ms of a processor", "steps": steps}
    print_table(
        ["running", "queued", "cached blocks", "plan + apply, ms a step"],
        [(*load, spread.short()) for load, spread in steps],
    )
    write_report(options, report, lambda path: plot(report, path))


if __name__ == "__main__":
    main()
