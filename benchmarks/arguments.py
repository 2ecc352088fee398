# SPDX-License-Identifier: Apache-2.0
"""Kinds of command-line values that the benchmarks share."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number of at least 1, for argparse's `type`."""
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
