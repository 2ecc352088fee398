# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks report alike: spreads, the machine, tables, JSON files and plots.

Imports nothing heavy, so that load generators can use it too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise at least one value."""
        ordered = list(values)
        return cls(statistics.median(ordered), min(ordered), max(ordered))

    def times(self, factor: float) -> Spread:
        """The same in another unit; factor > 0."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        return f"{self.median:8.2f}  ({self.low:.2f} .. {self.high:.2f})"

    def short(self) -> str:
        """About three digits of each, for narrow tables."""
        return f"{short(self.median)} ({short(self.low)} .. {short(self.high)})"


def short(value: float) -> str:
    """A number with about three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 .. 100) per cent lie, interpolated; 0 if there is none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def processor_name() -> str:
    """Name of the CPU, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def machine() -> dict[str, Any]:
    """Where the figures come from; the load shows whether the machine was quiet at the start."""
    return {
        "processor": processor_name(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; the first is flush left, the others flush right."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def add_report_options(parser: argparse._ActionsContainer, *, has_plot: bool = True) -> None:
    """Options that say where a report goes; `write_report` does as they say."""
    parser.add_argument("--output", type=Path, help="JSON file to write")
    if has_plot:
        parser.add_argument("--plot", type=_plot_path, help="image to write (needs matplotlib)")


def write_report(
    options: argparse.Namespace, report: object, draw: Callable[[Path], None] | None = None
) -> None:
    """Write the JSON file and the plot that the options ask for."""
    if options.output:
        write_json(options.output, report)
    if draw is not None and options.plot:
        draw(options.plot)


def _plot_path(text: str) -> Path:
    """What is missing for a plot is told before anything is measured."""
    load_pyplot()
    return Path(text)


def write_json(path: Path, report: object) -> None:
    """Write a report; dataclasses become objects."""

    def encode(value: object) -> object:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        raise TypeError(f"{value!r} cannot be written as JSON")

    path.write_text(json.dumps(report, default=encode, indent=2) + "\n")
    print(f"written to {path}")


def load_pyplot() -> Any:
    """matplotlib.pyplot, drawing into files.

    Raises:
        SystemExit: it is not installed; the message says how to install it.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit(
            "--plot needs matplotlib: pip install 'fdspec[bench]', or in a checkout "
            ".venv/bin/python -m pip install -r requirements/bench.txt"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_plot(figure: Any, path: Path) -> None:
    """Write a figure; the ending of the name decides the format (.png, .svg, .pdf)."""
    figure.savefig(path, bbox_inches="tight", dpi=150)
    print(f"plotted to {path}")
