# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test package shares."""

from __future__ import annotations

from pathlib import Path

import pytest

_MODEL = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model, SmolLM2-135M-Instruct as Q4_1 GGUF."""
    if not _MODEL.exists():
        pytest.fail(f"{_MODEL} is missing: run `make model`", pytrace=False)
    return _MODEL
