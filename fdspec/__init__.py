# SPDX-License-Identifier: Apache-2.0
"""fdspec: serve PaddlePaddle language models; speculative decoding changes latency only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdspec.core import SamplingParams
from fdspec.version import __version__

if TYPE_CHECKING:
    from fdspec.entrypoints.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """`fdspec.LLM`, imported when it is first used: it brings paddle, which a frontend must not."""
    if name == "LLM":
        from fdspec.entrypoints.llm import LLM

        return LLM
    raise AttributeError(f"module 'fdspec' has no attribute {name!r}")
