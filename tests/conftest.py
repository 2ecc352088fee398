# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test package shares."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_weight_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed weights of tests stay out of the user's folder; servers inherit the variable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Entry points that a test calls send log lines to a standard error that soon is closed."""
    logger = logging.getLogger("fdspec")
    level, handlers, propagate = logger.level, list(logger.handlers), logger.propagate
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
    logger.propagate = propagate


_MODEL = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model, SmolLM2-135M-Instruct as Q4_1 GGUF."""
    if not _MODEL.exists():
        pytest.fail(f"{_MODEL} is missing: run `make model`", pytrace=False)
    return _MODEL
