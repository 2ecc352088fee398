# SPDX-License-Identifier: Apache-2.0
"""The model's files as the API process needs them: local paths, and the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.config import EngineConfig
from fdspec.entrypoints.template_file import read_chat_template
from fdspec.utils.gguf_header import forget_gguf_headers

if TYPE_CHECKING:
    from fdspec.tokenizer import Tokenizer


def with_local_model(config: EngineConfig, *, weights: bool = True) -> EngineConfig:
    """The configuration with hub ids replaced by paths, after a download.

    Args:
        config: of the server.
        weights: False if only the tokenizer is needed.

    Raises:
        ConfigError: no such path or model, or the hub cannot be reached.
    """
    tokenizer = config.model.tokenizer or config.model.model
    names = [config.model.model, tokenizer] if weights else [tokenizer]
    if all(Path(name).expanduser().exists() for name in names):
        return config
    # A local model, the usual case, does not need the engine's modules here.
    from fdspec.engine.build import with_local_model

    return with_local_model(config)


def load_server_tokenizer(config: EngineConfig) -> Tokenizer:
    """The tokenizer with the chat template that the configuration names.

    Raises:
        CheckpointError, ConfigError: it cannot be read.
    """
    from fdspec.tokenizer import load_tokenizer

    path = Path(config.model.tokenizer or config.model.model).expanduser()
    tokenizer = load_tokenizer(path, read_chat_template(config.model.chat_template))
    forget_gguf_headers()
    return tokenizer
