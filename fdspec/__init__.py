# SPDX-License-Identifier: Apache-2.0
"""fdspec: serve PaddlePaddle language models; speculative decoding changes latency only."""

from fdspec.core import SamplingParams
from fdspec.version import __version__

__all__ = ["SamplingParams", "__version__"]
