# SPDX-License-Identifier: Apache-2.0
"""How long a step takes with more rows: the price of verifying drafts, and of more sequences.

For each weight format it times steps of 1 .. 256 rows, as one sequence with drafts and as many
sequences, beside the least time that the machine allows: reading the weights once, or multiplying
them with all rows. It fits the two costs by which draft lengths are chosen, in

    T(B, D) = T(1, 0) * (1 + sequence * (B - 1) + row * D)

for B sequences with D draft rows in all.

    python -m benchmarks.bench_roofline --output roofline.json --plot roofline.png
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count, isa
from benchmarks.offline_runner import BLOCK_SIZE, OfflineRunner, blocks_of, decode_plan
from benchmarks.op_cases import operations_per_row
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
from fdspec import ops
from fdspec.ops import probe
from fdspec.spec_decode.step_costs import StepCosts

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
AS_STORED = "as-stored"
# Steps of the fit: sequences, and draft rows of each.
FIT_SHAPES = tuple((b, d) for b in (1, 2, 4, 8, 16) for d in (0, 1, 2, 5))
Shape = tuple[int, int]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL, help="folder or GGUF file")
    parser.add_argument(
        "--quantizations",
        nargs="+",
        default=(AS_STORED, "wint8"),
        help="weight formats; the demo model is stored as wint4",
    )
    parser.add_argument(
        "--rows", type=count, nargs="+", default=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
    )
    parser.add_argument("--context", type=int, default=128, help="cached tokens of each sequence")
    parser.add_argument("--threads", type=count, help="default: all processors")
    parser.add_argument("--isa", type=isa, help="instruction set level; default: the best")
    parser.add_argument(
        "--rounds", type=count, default=9, help="each gives one figure of each step"
    )
    parser.add_argument(
        "--repeats", type=count, default=3, help="steps of a figure; the least counts"
    )
    add_report_options(parser)
    return parser.parse_args(arguments)


def num_slots(shapes: Sequence[Shape], context: int) -> int:
    """Cache slots that the largest step needs."""
    return BLOCK_SIZE * max(b * blocks_of(context, 1 + d) for b, d in shapes)


def measure(
    runner: OfflineRunner, shapes: Sequence[Shape], options: argparse.Namespace, label: str
) -> tuple[dict[Shape, list[float]], list[dict[str, float]]]:
    """Seconds of each step and the machine's limits, both round by round."""
    plans = {shape: decode_plan(*shape, options.context) for shape in shapes}
    for plan in plans.values():
        runner.time_step_s(plan)
    times: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    limits = []
    for index in tqdm(range(options.rounds), desc=label):
        limits.append(
            {
                "bytes_per_s": statistics.median(probe.read_bandwidth(runner.weight_bytes)),
                "int8_per_s": statistics.median(probe.int8_peak(repeats=3)),
            }
        )
        # The probes leave caches and clock rates as no step does; nor is any step always the first.
        runner.time_step_s(plans[shapes[0]])
        for shape in random.Random(index).sample(shapes, len(shapes)):
            seconds = min(runner.time_step_s(plans[shape]) for _ in range(options.repeats))
            times[shape].append(seconds)
    return times, limits


def summarise(
    runner: OfflineRunner,
    times: dict[Shape, list[float]],
    limits: Sequence[dict[str, float]],
    rows: Sequence[int],
) -> dict[str, Any]:
    """Spreads of times, ratios, limits and fitted constants."""
    operations = operations_per_row(runner.config)
    base = times[1, 0]

    def least_s(num_rows: int, limit: dict[str, float]) -> float:
        reading = runner.weight_bytes / limit["bytes_per_s"]
        return max(reading, num_rows * operations / limit["int8_per_s"])

    def figures(count: int, own: Sequence[float]) -> dict[str, Spread]:
        return {
            "time_ms": Spread.of(1000 * s for s in own),
            "ratio_to_one_row": Spread.of(s / one for s, one in zip(own, base, strict=True)),
            "share_of_limit": Spread.of(
                least_s(count, limit) / s for s, limit in zip(own, limits, strict=True)
            ),
        }

    by_round = [{shape: own[i] for shape, own in times.items()} for i in range(len(limits))]
    fits = [
        StepCosts.fitted({shape: seconds[shape] for shape in FIT_SHAPES}) for seconds in by_round
    ]
    return {
        "weight_bytes": runner.weight_bytes,
        "one_sequence": {count: figures(count, times[1, count - 1]) for count in rows},
        "many_sequences": {count: figures(count, times[count, 0]) for count in rows},
        "limit_ms": {
            count: Spread.of(1000 * least_s(count, limit) for limit in limits) for count in rows
        },
        "six_rows_to_one": figures(6, times[1, 5])["ratio_to_one_row"],
        "sequence_cost": Spread.of(costs.sequence for costs in fits),
        "row_cost": Spread.of(costs.row for costs in fits),
    }


def print_report(report: dict[str, Any]) -> None:
    """One table for each format, and the fitted constants."""
    print(f"\n{report['machine']['processor']}, {report['num_threads']} threads, {report['isa']}")
    for name, result in report["formats"].items():
        print(f"\n{name}: {result['weight_bytes'] / 1e6:.1f} MB of weights")
        print_table(
            ["rows", "one sequence, ms", "T/T(1)", "% of limit", "many sequences, ms", "T/T(1)"],
            [
                [
                    count,
                    result["one_sequence"][count]["time_ms"].short(),
                    short(result["one_sequence"][count]["ratio_to_one_row"].median),
                    short(100 * result["one_sequence"][count]["share_of_limit"].median),
                    result["many_sequences"][count]["time_ms"].short(),
                    short(result["many_sequences"][count]["ratio_to_one_row"].median),
                ]
                for count in result["one_sequence"]
            ],
        )
        if 6 in result["one_sequence"]:
            print(f"T(6 rows) / T(1 row)      {result['six_rows_to_one'].short()}")
        for constant in ("row_cost", "sequence_cost"):
            print(f"fitted {constant:18s} {result[constant].short()}")


def plot(report: dict[str, Any], path: Path) -> None:
    """Step time over rows, logarithmic, with ranges and limits; one panel for each format."""
    pyplot = load_pyplot()
    formats = report["formats"]
    figure, panels = pyplot.subplots(
        1, len(formats), figsize=(6 * len(formats), 4.5), squeeze=False, sharey=True
    )
    for axes, (name, result) in zip(panels.flat, formats.items(), strict=True):
        for label in ("one_sequence", "many_sequences"):
            spreads = [entry["time_ms"] for entry in result[label].values()]
            errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            axes.errorbar(
                list(result[label]),
                [spread.median for spread in spreads],
                yerr=errors,
                marker="o",
                markersize=3,
                label=label.replace("_", " "),
            )
        limits = result["limit_ms"]
        axes.plot(list(limits), [spread.median for spread in limits.values()], "k--", label="limit")
        axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="ms a step", title=name)
        axes.grid(True, which="both", alpha=0.2)
        axes.legend()
    save_plot(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    if options.threads:
        ops.set_num_threads(options.threads)
    if options.isa:
        ops.set_isa(options.isa)
    shapes = list(
        dict.fromkeys(
            [*((1, n - 1) for n in options.rows), *((n, 0) for n in options.rows), *FIT_SHAPES]
        )
    )
    formats = {}
    for name in options.quantizations:
        quantization = None if name == AS_STORED else name
        runner = OfflineRunner(options.model, quantization, num_slots(shapes, options.context))
        times, limits = measure(runner, shapes, options, name)
        formats[name] = summarise(runner, times, limits, options.rows)
        runner.close()
    report = {
        "machine": machine(),
        "model": options.model,
        "context": options.context,
        "num_threads": ops.num_threads(),
        "isa": ops.isa(),
        "formats": formats,
    }
    print_report(report)
    write_report(options, report, lambda path: plot(report, path))


if __name__ == "__main__":
    main()
