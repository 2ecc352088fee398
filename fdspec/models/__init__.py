# SPDX-License-Identifier: Apache-2.0
"""Models: finding and reading checkpoints, and the decoder of the Llama family.

Importing this package does not import paddle; `load_model` does when it is called.
"""

from fdspec.models.config import ModelConfig
from fdspec.models.config_reading import read_model_config
from fdspec.models.hub import resolve_model
from fdspec.models.loading import ModelOptions, checkpoint_digest, load_model
from fdspec.models.rope_override import RopeOverride
from fdspec.models.weight_cache import WeightCache, user_cache_folder
from fdspec.models.weight_formats import WeightFormats, weight_formats

__all__ = [
    "ModelConfig",
    "ModelOptions",
    "RopeOverride",
    "WeightCache",
    "WeightFormats",
    "checkpoint_digest",
    "load_model",
    "read_model_config",
    "resolve_model",
    "user_cache_folder",
    "weight_formats",
]
