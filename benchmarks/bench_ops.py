# SPDX-License-Identifier: Apache-2.0
"""Every kernel beside the limits of the machine: bytes and operations a second, share of the limit.

The limits are measured in the same rounds as the kernels: how fast memory is read, over as many
bytes as the kernel goes through, and how fast integers and floats are multiplied in registers.
A kernel can take no less than max(bytes / bandwidth, operations / peak); `limit` is that time over
the measured one.

    python -m benchmarks.bench_ops --output ops.json --plot ops.png
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count, isa
from benchmarks.op_cases import (
    Case,
    attention_cases,
    linear_cases,
    random_weights,
    rowwise_cases,
    sampling_cases,
)
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
from fdspec.models import ModelConfig, read_model_config
from fdspec.ops import probe

GIGA = 1e9
DEFAULT_MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
# The demo model has 4-bit layers and an 8-bit output projection.
FORMATS = ("wint4+wint8_g32", "wint8", "wint4_a16", "bfloat16")
GROUPS = ("linear", "attention", "sampling", "rowwise")
PEAKS = {
    "int8": probe.int8_peak,
    "float": probe.float_peak,
    "bfloat16": probe.bfloat16_peak,
}
FOOTPRINTS_BYTES = (1 << 16, 1 << 20, 1 << 23, 1 << 25, 1 << 26, 1 << 27, 1 << 28)


@dataclass(frozen=True)
class Limits:
    """What the machine does in one round.

    Attributes:
        bandwidths: bytes a second for each footprint in bytes.
        peaks: operations a second by name of PEAKS.
    """

    bandwidths: dict[int, float]
    peaks: dict[str, float]

    def bandwidth(self, footprint_bytes: int) -> float:
        """Of the smallest probe that is no smaller, else of the largest."""
        fitting = [size for size in self.bandwidths if size >= footprint_bytes]
        return self.bandwidths[min(fitting, default=max(self.bandwidths))]

    def least_time_s(self, case: Case) -> tuple[float, str]:
        """What a call takes at least, and which limit says so."""
        by_limit = {
            "memory": case.num_bytes / self.bandwidth(case.footprint_bytes),
            case.peak: case.num_operations / self.peaks[case.peak],
        }
        name = max(by_limit, key=lambda key: by_limit[key])
        return by_limit[name], name


@dataclass(frozen=True)
class Figure:
    """What was measured of one case."""

    group: str
    name: str
    time_us: Spread
    gigabytes_per_s: Spread
    gigaoperations_per_s: Spread
    share_of_limit: Spread
    limit: str
    operations_per_byte: float


def measure_limits(footprints: Sequence[int]) -> Limits:
    """Probe memory and arithmetic once."""

    def once(rates: list[float]) -> float:
        return statistics.median(rates)

    return Limits(
        {size: once(probe.read_bandwidth(size, repeats=3)) for size in footprints},
        {name: once(measure_peak(repeats=3)) for name, measure_peak in PEAKS.items()},
    )


def time_call_s(case: Case, num_calls: int) -> float:
    """Mean time of a call over so many."""
    start_s = time.perf_counter()
    for i in range(num_calls):
        case.call(i)
    return (time.perf_counter() - start_s) / num_calls


def calls_for(case: Case, min_time_s: float) -> int:
    """How many calls take min_time_s, from a few of them; also warms up."""
    case.call(0)
    return max(1, round(min_time_s / time_call_s(case, 2)))


def measure(
    cases: Sequence[Case], footprints: Sequence[int], rounds: int, min_time_s: float
) -> tuple[list[Figure], list[Limits]]:
    """Go through limits and cases in rounds, so that a drifting machine affects all alike."""
    num_calls = [calls_for(case, min_time_s) for case in cases]
    all_limits = []
    times: list[list[float]] = [[] for _ in cases]
    for _ in tqdm(range(rounds), desc="rounds"):
        all_limits.append(measure_limits(footprints))
        for index, case in enumerate(cases):
            times[index].append(time_call_s(case, num_calls[index]))
    figures = [
        _figure(case, seconds, all_limits) for case, seconds in zip(cases, times, strict=True)
    ]
    return figures, all_limits


def build_cases(config: ModelConfig, options: argparse.Namespace) -> tuple[list[Case], int]:
    """All cases that were asked for, and the bytes that a token streams in the first format."""
    cases: list[Case] = []
    all_weights = [random_weights(config, name) for name in options.formats]
    for rows in options.rows:
        if "linear" in options.groups:
            for weights in all_weights:
                cases += linear_cases(weights, rows)
        if "rowwise" in options.groups:
            cases += rowwise_cases(config, all_weights[0], rows)
        if "sampling" in options.groups and rows <= 64:
            cases += sampling_cases(config, rows)
    if "attention" in options.groups:
        for dtype in options.kv_cache_dtype:
            cases += attention_cases(config, options.contexts, dtype)
    return cases, all_weights[0].num_bytes


def print_report(report: dict[str, Any], figures: Sequence[Figure]) -> None:
    """Limits first, then one line for each case."""
    print(f"\n{report['machine']['processor']}, {report['num_threads']} threads, {report['isa']}")
    rows = [
        [f"read {size / 2**20:g} MiB, GB/s", spread.short()]
        for size, spread in report["read_gigabytes_per_s"].items()
    ]
    rows += [
        [f"{name} peak, GOP/s", spread.short()]
        for name, spread in report["peak_gigaoperations_per_s"].items()
    ]
    print_table(["limit", "median (low .. high)"], rows)
    print()
    print_table(
        ["kernel", "time in us", "GB/s", "GOP/s", "share of limit in %", "limit"],
        [
            [
                f"{figure.group}: {figure.name}",
                figure.time_us.short(),
                f"{figure.gigabytes_per_s.median:.1f}",
                f"{figure.gigaoperations_per_s.median:.0f}",
                figure.share_of_limit.times(100).short(),
                figure.limit,
            ]
            for figure in figures
        ],
    )


def plot(report: dict[str, Any], figures: Sequence[Figure], path: Path) -> None:
    """A roofline: operations a second over operations per byte, below the roofs of the machine."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 6))
    counted = [f for f in figures if f.gigaoperations_per_s.median > 0]
    bandwidth = report["read_gigabytes_per_s"][report["token_bytes"]].median
    intensities = [2 ** (step / 8) for step in range(-16, 97)]
    for name, peak in report["peak_gigaoperations_per_s"].items():
        roof = [min(bandwidth * x, peak.median) for x in intensities]
        axes.plot(intensities, roof, label=f"limit: reading a token's weights, {name} peak")
    for group in sorted({f.group for f in counted}):
        members = [f for f in counted if f.group == group]
        axes.scatter(
            [f.operations_per_byte for f in members],
            [f.gigaoperations_per_s.median for f in members],
            s=14,
            label=group,
        )
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="GOP/s")
    axes.set_title(f"{report['machine']['processor']}, {report['num_threads']} threads")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=8)
    save_plot(figure, path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="whose shapes to use")
    parser.add_argument(
        "--formats", nargs="+", default=FORMATS, help="formats; LAYERS+OUTPUT mixes two"
    )
    parser.add_argument("--rows", type=count, nargs="+", default=(1, 6, 64, 256))
    parser.add_argument("--contexts", type=int, nargs="+", default=(128, 1024, 4096))
    parser.add_argument(
        "--kv-cache-dtype", nargs="+", default=("bfloat16", "int8"), help="caches of attention"
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--threads", type=count, help="default: all processors")
    parser.add_argument("--isa", type=isa, help="instruction set level; default: the best")
    parser.add_argument("--rounds", type=count, default=7, help="figures of each kernel")
    parser.add_argument("--min-time-ms", type=float, default=5.0, help="length of one figure")
    add_report_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    if options.threads:
        ops.set_num_threads(options.threads)
    if options.isa:
        ops.set_isa(options.isa)
    cases, token_bytes = build_cases(read_model_config(options.model), options)
    footprints = sorted({*FOOTPRINTS_BYTES, token_bytes})
    figures, limits = measure(cases, footprints, options.rounds, options.min_time_ms / 1000)
    report: dict[str, Any] = {
        "machine": machine(),
        "model": options.model,
        "num_threads": ops.num_threads(),
        "isa": ops.isa(),
        "token_bytes": token_bytes,
        "read_gigabytes_per_s": {
            size: Spread.of(limit.bandwidths[size] / GIGA for limit in limits)
            for size in footprints
        },
        "peak_gigaoperations_per_s": {
            name: Spread.of(limit.peaks[name] / GIGA for limit in limits) for name in PEAKS
        },
        "kernels": figures,
    }
    print_report(report, figures)
    write_report(options, report, lambda path: plot(report, figures, path))


def _figure(case: Case, seconds: Sequence[float], limits: Sequence[Limits]) -> Figure:
    least = [limit.least_time_s(case) for limit in limits]
    names = [name for _, name in least]
    return Figure(
        case.group,
        case.name,
        Spread.of(s * 1e6 for s in seconds),
        Spread.of(case.num_bytes / s / GIGA for s in seconds),
        Spread.of(case.num_operations / s / GIGA for s in seconds),
        Spread.of(time_s / s for (time_s, _), s in zip(least, seconds, strict=True)),
        statistics.mode(names),
        case.num_operations / case.num_bytes,
    )


if __name__ == "__main__":
    main()
