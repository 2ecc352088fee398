# SPDX-License-Identifier: Apache-2.0
"""Opens the checkpoint at a path with the reader of its kind. Model loading calls it."""

from __future__ import annotations

from pathlib import Path

from fdspec.models.checkpoint.base import Checkpoint
from fdspec.models.checkpoint.gguf_reader import GGUFCheckpoint
from fdspec.models.checkpoint.paddle_layout import with_usual_layout
from fdspec.models.checkpoint.pdparams_reader import PdparamsCheckpoint
from fdspec.models.checkpoint.safetensors_reader import SafetensorsCheckpoint
from fdspec.models.config import ModelConfig
from fdspec.models.files import find_checkpoint
from fdspec.utils.gguf_header import read_gguf_header


def open_checkpoint(path: Path, config: ModelConfig) -> Checkpoint:
    """The tensors of a model folder, or of a .gguf, .safetensors or .pdparams file.

    Args:
        path: as `find_checkpoint` takes it.
        config: says which layout files of Paddle have.

    Raises:
        CheckpointError: nothing there that can be read.
    """
    files = find_checkpoint(path)
    if files.gguf is not None:
        return GGUFCheckpoint(read_gguf_header(files.gguf))
    if files.pdparams:
        return with_usual_layout(PdparamsCheckpoint(files.pdparams), config)
    return with_usual_layout(SafetensorsCheckpoint(files.safetensors), config)
