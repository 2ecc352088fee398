# SPDX-License-Identifier: Apache-2.0
"""A picture of the training curve, where matplotlib is installed (the extra `bench`)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fdspec.training.checkpoint import Measurement


def plot_curve(curve: Sequence[Measurement], path: Path) -> bool:
    """Acceptance by position over the steps, as PNG; False if there is no matplotlib."""
    # Not a dependency: looked for when the program runs.
    if importlib.util.find_spec("matplotlib") is None:
        return False
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = [point.step for point in curve]
    for position in range(len(curve[0].acceptance)):
        shares = [100 * point.acceptance[position] for point in curve]
        axes.plot(steps, shares, marker="o", label=f"draft {position + 1}")
    axes.set_xlabel("training step")
    axes.set_ylabel("accepted on held-out answers, %")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return True
