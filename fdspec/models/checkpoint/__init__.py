# SPDX-License-Identifier: Apache-2.0
"""Readers of checkpoint files behind one interface: safetensors, GGUF, pdparams, random weights."""

from fdspec.models.checkpoint.base import Checkpoint, QuantizedTensor, Tensor
from fdspec.models.checkpoint.dummy import DummyCheckpoint
from fdspec.models.checkpoint.gguf_reader import GGUFCheckpoint
from fdspec.models.checkpoint.opening import open_checkpoint
from fdspec.models.checkpoint.pdparams_reader import PdparamsCheckpoint
from fdspec.models.checkpoint.safetensors_reader import SafetensorsCheckpoint

__all__ = [
    "Checkpoint",
    "DummyCheckpoint",
    "GGUFCheckpoint",
    "PdparamsCheckpoint",
    "QuantizedTensor",
    "SafetensorsCheckpoint",
    "Tensor",
    "open_checkpoint",
]
