# SPDX-License-Identifier: Apache-2.0
"""Builds a model from a checkpoint.

Owns the way from a path to a LlamaFamilyModel; formats are weights.py's, architectures the
registry's. The engine calls `load_model`; nothing here runs at import.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.models.config_reading import read_model_config
from fdspec.models.registry import family_of_architecture

if TYPE_CHECKING:
    from fdspec.models.decoder import LlamaFamilyModel


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a model.

    Attributes:
        quantization: format of the matrices: None (as the checkpoint has it), none (float32),
            bfloat16, wint8, wint4, ... (see WeightFormat).
        max_model_len: positions to make room for; None for all that the model has.
        dummy_weights: random weights; only the configuration is read.
    """

    quantization: str | None = None
    max_model_len: int | None = None
    dummy_weights: bool = False


def load_model(path: str | Path, options: ModelOptions | None = None) -> LlamaFamilyModel:
    """Load a local model; see `resolve_model` for hub ids.

    Args:
        path: model folder, .gguf file or .safetensors file.
        options: default: as the checkpoint has it.

    Returns:
        The model, ready to run on the CPU.

    Raises:
        CheckpointError: an architecture that is not known, or a tensor that is missing, left over
            or of another shape.
        ConfigError: an option that the model cannot meet.
    """
    # These import paddle, which only processes that run models may, and gguf.
    from fdspec.models.building import build_model
    from fdspec.models.checkpoint import DummyCheckpoint, open_checkpoint

    options = options or ModelOptions()
    config = read_model_config(path)
    max_model_len = config.resolve_max_model_len(options.max_model_len)
    return build_model(
        config,
        family_of_architecture(config.architecture, config.source),
        DummyCheckpoint() if options.dummy_weights else open_checkpoint(Path(path)),
        quantization=options.quantization,
        max_model_len=max_model_len,
    )
