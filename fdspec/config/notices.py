# SPDX-License-Identifier: Apache-2.0
"""What a user should hear about a valid configuration: one line for each setting. Pure."""

from __future__ import annotations

from fdspec.config.engine_config import EngineConfig
from fdspec.config.options import options_of
from fdspec.config.topic import TopicConfig


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
    ranks = config.device.tensor_parallel_size
    if ranks > 1:
        lines.append(
            f"tensor_parallel_size: {ranks} divides the model in --dry-run only; a server computes "
            "all of it in one process (num_threads sets its cores)"
        )
    unused = _unused_topic_keys(config.topic)
    if unused:
        lines.append(
            f"{', '.join(unused)}: no effect with scheduler_name: local, which has no broker; "
            "scheduler_name: global shares a topic"
        )
    return lines


def _unused_topic_keys(topic: TopicConfig) -> list[str]:
    """Keys of a shared topic that somebody has set although there is none."""
    if topic.is_shared:
        return []
    default = TopicConfig()
    names = [option.path[-1] for option in options_of(TopicConfig)]
    return [name for name in names if getattr(topic, name) != getattr(default, name)]
