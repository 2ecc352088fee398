# SPDX-License-Identifier: Apache-2.0
"""What a user should hear about a valid configuration: one line for each setting. Pure."""

from __future__ import annotations

from fdspec.config.engine_config import EngineConfig


def notices(config: EngineConfig) -> list[str]:
    """Settings that change the output, and settings that have no effect. Does not modify."""
    lines = []
    speculative = config.speculative
    if speculative is not None and speculative.verify_strategy == "topp":
        lines.append(
            "speculative_config.verify_strategy: topp is lossy: it accepts any draft in the "
            "nucleus, so the output differs from the model's; target_match is exact"
        )
    if speculative is not None and speculative.accept_policy == "accept_all":
        lines.append(
            "speculative_config.accept_policy: accept_all keeps wrong drafts: the output is not "
            "the model's; for debugging only"
        )
    return lines
