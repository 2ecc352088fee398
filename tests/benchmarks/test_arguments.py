# SPDX-License-Identifier: Apache-2.0
"""Command-line values of the benchmarks."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.arguments import count, isa


def test_counts() -> None:
    assert count("12") == 12
    for text in ("0", "-1", "1.5", "x", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 1, got"):
            count(text)


def test_instruction_sets() -> None:
    assert isa("portable") == "portable"
    with pytest.raises(argparse.ArgumentTypeError, match="have portable.*, not 'avx1024'"):
        isa("avx1024")
