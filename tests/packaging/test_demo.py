# SPDX-License-Identifier: Apache-2.0
"""The demo from start to end, on the real model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_demo_ends_well_and_says_that_texts_are_identical(smollm2_path):
    result = subprocess.run(
        [sys.executable, "-m", "scripts.demo"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Texts with and without speculation are identical." in result.stdout
    drafted = re.search(r"repetition, n-gram drafts +(\d+) +[\d.]+ +([\d.]+)", result.stdout)
    assert drafted is not None
    assert float(drafted[2]) >= 2.0
