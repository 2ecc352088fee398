# SPDX-License-Identifier: Apache-2.0
"""Command-line values of the benchmarks."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.arguments import count


def test_counts() -> None:
    assert count("12") == 12
    for text in ("0", "-1", "1.5", "x", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 1, got"):
            count(text)
