# SPDX-License-Identifier: Apache-2.0
"""The sections of EngineConfig: which dataclass holds which keys, and under which name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fdspec.config.engine_config import (
    CacheConfig,
    DeviceConfig,
    GraphOptimizationConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from fdspec.config.handoff import HandoffConfig
from fdspec.config.options import Option, options_of
from fdspec.config.rope_scaling import RopeScalingConfig
from fdspec.config.speculative import SpeculativeConfig
from fdspec.config.topic import TopicConfig


@dataclass(frozen=True, slots=True)
class Section:
    """One part of EngineConfig.

    Attributes:
        field: its name in EngineConfig.
        part: its dataclass.
        title: heading in `--help`.
        key: the YAML key of its map; None if its keys stand at the top level.
        nullable: True if the part may be off (None).
        example: a value of its flag, in JSON; empty if it has no key.
        options: its keys.
    """

    field: str
    part: type
    title: str
    key: str | None
    nullable: bool
    example: str
    options: tuple[Option, ...]


@cache
def sections() -> tuple[Section, ...]:
    """All sections, in the order in which they are shown."""
    return (
        _section("model", ModelConfig, "Model"),
        _section(
            "rope_scaling",
            RopeScalingConfig,
            "Rotary embedding",
            "rope_scaling",
            example='{"type": "yarn", "factor": 4.0}',
        ),
        _section("cache", CacheConfig, "KV cache"),
        _section("scheduler", SchedulerConfig, "Scheduler"),
        _section(
            "speculative",
            SpeculativeConfig,
            "Speculation",
            "speculative_config",
            nullable=True,
            example='{"method": "ngram", "num_speculative_tokens": 5}',
        ),
        _section(
            "graph_optimization",
            GraphOptimizationConfig,
            "Graph optimisation",
            "graph_optimization_config",
            example='{"use_step_program": false}',
        ),
        _section("device", DeviceConfig, "Device"),
        _section("topic", TopicConfig, "Scheduler topic"),
        _section("handoff", HandoffConfig, "KV handoff"),
        _section("server", ServerConfig, "Server"),
    )


def _section(
    field: str,
    part: type,
    title: str,
    key: str | None = None,
    *,
    nullable: bool = False,
    example: str = "",
) -> Section:
    return Section(field, part, title, key, nullable, example, tuple(options_of(part, key)))
