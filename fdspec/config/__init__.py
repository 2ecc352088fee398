# SPDX-License-Identifier: Apache-2.0
"""Configuration: YAML + command line + JSON -> one frozen EngineConfig with an origin per value.

Foreign names (FastDeploy, vLLM, MindIE) are mapped in `foreign.py` and `foreign_values.py` only.
Never imports paddle. Called by the entry points; every other package only receives the dataclasses.
"""

from fdspec.config.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    GraphOptimizationConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from fdspec.config.handoff import HandoffConfig
from fdspec.config.loader import (
    LoadedConfig,
    config_from_options,
    load_config,
    load_config_or_exit,
)
from fdspec.config.rope_scaling import RopeScalingConfig
from fdspec.config.speculative import SpeculativeConfig
from fdspec.config.topic import TopicConfig

__all__ = [
    "CacheConfig",
    "DeviceConfig",
    "EngineConfig",
    "GraphOptimizationConfig",
    "HandoffConfig",
    "LoadedConfig",
    "ModelConfig",
    "RopeScalingConfig",
    "SchedulerConfig",
    "ServerConfig",
    "SpeculativeConfig",
    "TopicConfig",
    "config_from_options",
    "load_config",
    "load_config_or_exit",
]
