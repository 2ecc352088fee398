# SPDX-License-Identifier: Apache-2.0
"""Builds a model from a checkpoint, or from the packed weights that an earlier start kept of it.

Owns the way from a path to a LlamaFamilyModel; formats are weights.py's, architectures the
registry's. The engine calls `load_model`; nothing here runs at import.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.core.errors import ConfigError
from fdspec.models.config import ModelConfig
from fdspec.models.config_reading import read_model_config
from fdspec.models.content_digest import digest_of_files
from fdspec.models.files import find_checkpoint
from fdspec.models.packed_file import DamagedFile
from fdspec.models.registry import family_of_architecture
from fdspec.models.rope_override import RopeOverride
from fdspec.models.weight_cache import WeightCache
from fdspec.models.weight_formats import WeightFormats, weight_formats
from fdspec.ops import packed_layout_fingerprint
from fdspec.version import __version__

if TYPE_CHECKING:
    from fdspec.models.decoder import LlamaFamilyModel
    from fdspec.models.kept_weights import WeightSource
    from fdspec.models.weights import WeightLoader

_Build = Callable[["WeightSource"], "LlamaFamilyModel"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a model.

    Attributes:
        quantization: format of the matrices: None (as the checkpoint has it), none (float32),
            bfloat16, wint8, wint4, ... (see WeightFormat).
        expert_quantization: format of routed experts; None: see `weight_formats`.
        max_model_len: positions to make room for; None for all that the model has.
        dummy_weights: random weights; only the configuration is read.
        rope: rotary settings in the place of the checkpoint's.
        cache: where packed weights are kept between starts; None packs them each time.
    """

    quantization: str | None = None
    expert_quantization: str | None = None
    max_model_len: int | None = None
    dummy_weights: bool = False
    rope: RopeOverride = RopeOverride()
    cache: WeightCache | None = None


def load_model(path: str | Path, options: ModelOptions | None = None) -> LlamaFamilyModel:
    """Load a local model; see `resolve_model` for hub ids.

    Args:
        path: model folder, or .gguf, .safetensors or .pdparams file.
        options: default: as the checkpoint has it, without a cache.

    Returns:
        The model, ready to run on the CPU.

    Raises:
        CheckpointError: an architecture that is not known, or a tensor that is missing, left over
            or of another shape.
        ConfigError: an option that the model cannot meet.
    """
    # These import paddle, which only processes that run models may, and gguf.
    from fdspec.models.building import GGUF_ROPE_FACTORS, build_model
    from fdspec.models.checkpoint import DummyCheckpoint, open_checkpoint
    from fdspec.models.weights import WeightLoader

    options = options or ModelOptions()
    stored = read_model_config(path)
    config = options.rope.apply(stored)
    family = family_of_architecture(config.architecture, config.source)
    formats = weight_formats(config, options.quantization, options.expert_quantization)
    max_model_len = config.resolve_max_model_len(options.max_model_len)
    checkpoint = DummyCheckpoint() if options.dummy_weights else open_checkpoint(Path(path), config)

    if options.rope.changes_something and GGUF_ROPE_FACTORS in checkpoint.names():
        raise ConfigError(
            f"{config.source}: the file has its own rotary frequencies ({GGUF_ROPE_FACTORS}); "
            "rope_scaling and rope_theta cannot take their place"
        )

    def build(weights: WeightSource) -> LlamaFamilyModel:
        return build_model(config, family, checkpoint, weights=weights, max_model_len=max_model_len)

    def load() -> WeightLoader:
        return WeightLoader(checkpoint, formats.dense, formats.experts)

    if options.cache is None or options.dummy_weights:
        return build(load())
    key = _cache_key(Path(path), stored, formats, options.cache.folder)
    model = _from_cache(options.cache, key, build)
    return model or _into_cache(options.cache, key, build, load)


def checkpoint_digest(path: Path, memo_folder: Path) -> str:
    """What the tensors of a checkpoint are, as a hexadecimal digest.

    Args:
        path: as for `load_model`.
        memo_folder: where digests are remembered, because reading all of a checkpoint takes long.
    """
    return digest_of_files(find_checkpoint(path).weights, memo_folder)


def _cache_key(path: Path, config: ModelConfig, formats: WeightFormats, folder: Path) -> str:
    """Everything that decides what packed weights are, as one hexadecimal digest."""
    # The same weights in another folder are the same.
    facts = (
        checkpoint_digest(path, folder),
        replace(config, source=""),
        formats,
        packed_layout_fingerprint(),
        __version__,
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=20).hexdigest()


def _from_cache(cache: WeightCache, key: str, build: _Build) -> LlamaFamilyModel | None:
    from fdspec.models.kept_weights import KeptWeights

    file = cache.open(key)
    if file is None:
        return None
    try:
        return build(KeptWeights(file))
    except DamagedFile as error:
        cache.report_damage(key, error)
        return None


def _into_cache(
    cache: WeightCache, key: str, build: _Build, load: Callable[[], WeightLoader]
) -> LlamaFamilyModel:
    from fdspec.models.kept_weights import KeepingLoader

    writer = cache.create(key)
    if writer is None:
        return build(load())
    try:
        model = build(KeepingLoader(load(), writer))
    except OSError as error:
        cache.report_failure(error)
        cache.discard(writer)
        return build(load())
    except BaseException:
        cache.discard(writer)
        raise
    cache.publish(key, writer)
    return model
