# SPDX-License-Identifier: Apache-2.0
"""Kinds of command-line values that the benchmarks share."""

from __future__ import annotations

import argparse

from fdspec import ops


def count(text: str) -> int:
    """A whole number of at least 1, for argparse's `type`."""
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")


def isa(text: str) -> str:
    """An instruction set level that this processor has, for argparse's `type`."""
    levels = ops.supported_isas()
    if text in levels:
        return text
    raise argparse.ArgumentTypeError(
        f"this processor and build have {', '.join(levels)}, not {text!r}"
    )
