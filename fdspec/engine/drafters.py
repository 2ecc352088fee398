# SPDX-License-Identifier: Apache-2.0
"""The models that draft: loading them, and checking that they fit the target. Called by `build.py`.

Importing this module does not import paddle; loading a model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.config import EngineConfig, SpeculativeConfig
from fdspec.config.speculative import MODEL_METHODS
from fdspec.core import ConfigError
from fdspec.models import ModelOptions, WeightCache, load_model, read_model_config
from fdspec.models.eagle_loading import load_eagle, load_eagle3
from fdspec.models.mtp_loading import load_mtp_folder, load_own_mtp
from fdspec.tokenizer import TokenTable, load_token_table

if TYPE_CHECKING:
    from fdspec.core.drafting import DraftModel
    from fdspec.kv.cache import ExtraLayers, KVCache
    from fdspec.models.decoder import LlamaFamilyModel
    from fdspec.models.draft_head import DraftHead


_LOADERS: dict[str, Callable[[Path, LlamaFamilyModel, str | None], DraftHead]] = {
    "mtp": load_mtp_folder,
    "eagle": load_eagle,
    "eagle3": load_eagle3,
}


@dataclass(frozen=True, slots=True)
class Drafter:
    """A loaded model or head that drafts.

    Attributes:
        method: that it drafts for.
        weight_bytes: memory of its weights.
        groups: what it keeps in the blocks of the target's cache.
        over: makes it draft over a cache whose extra layers from that group on are its own.
    """

    method: str
    weight_bytes: int
    groups: tuple[ExtraLayers, ...]
    over: Callable[[KVCache, int], DraftModel]


def load_drafters(
    config: EngineConfig,
    target: LlamaFamilyModel,
    tokens: TokenTable,
    weights: WeightCache | None,
) -> tuple[Drafter, ...]:
    """All models and heads that the configuration drafts with.

    Args:
        config: whose paths are local.
        target: the served model.
        tokens: of the target.
        weights: where packed weights are kept.

    Raises:
        ConfigError: one does not fit the target, or cannot be loaded as it is asked for.
        CheckpointError: a checkpoint's files cannot be used.
    """
    drafters = []
    for member in config.speculative.members if config.speculative is not None else ():
        if member.method == "draft_model":
            drafters.append(_draft_model(config, member, target, tokens, weights))
        elif member.method in MODEL_METHODS:
            drafters.append(_head(config, member, target))
    return tuple(drafters)


def groups_of(drafters: Sequence[Drafter]) -> tuple[ExtraLayers, ...]:
    """What all of them keep in the cache."""
    return tuple(group for drafter in drafters for group in drafter.groups)


def start_drafters(drafters: Sequence[Drafter], cache: KVCache) -> dict[str, DraftModel]:
    """By method, over a cache with their groups."""
    models = {}
    group = 0
    for drafter in drafters:
        models[drafter.method] = drafter.over(cache, group)
        group += len(drafter.groups)
    return models


def _draft_model(
    config: EngineConfig,
    speculative: SpeculativeConfig,
    target: LlamaFamilyModel,
    tokens: TokenTable,
    weights: WeightCache | None,
) -> Drafter:
    from fdspec.worker.draft_runner import DraftRunner, draft_model_layers  # imports paddle

    assert speculative.model is not None
    path = Path(speculative.model)
    is_dummy = config.model.load_choices == "dummy"
    stored = read_model_config(path)
    if not is_dummy:
        _check_tokenizer(path, tokens, stored.vocab_size)
    model = load_model(
        path,
        ModelOptions(
            quantization=speculative.quantization,
            # It may have fewer positions than the target: drafts end there.
            max_model_len=min(target.max_model_len, stored.longest_context),
            dummy_weights=is_dummy,
            cache=weights,
        ),
    )
    layers = draft_model_layers(
        model,
        dtype=config.cache.kv_cache_dtype,
        num_scratch_blocks=_num_scratch_blocks(config, speculative),
    )
    return Drafter(speculative.method, model.weight_bytes, (layers,), partial(DraftRunner, model))


def _head(
    config: EngineConfig, speculative: SpeculativeConfig, target: LlamaFamilyModel
) -> Drafter:
    from fdspec.worker.head_runner import HeadRunner, draft_head_layers  # imports paddle

    head: DraftHead
    if speculative.model is None:
        head = load_own_mtp(Path(config.model.model), target, speculative.quantization)
    else:
        load = _LOADERS[speculative.method]
        head = load(Path(speculative.model), target, speculative.quantization)
    groups = draft_head_layers(
        head,
        dtype=config.cache.kv_cache_dtype,
        num_scratch_blocks=_num_scratch_blocks(config, speculative),
    )
    return Drafter(speculative.method, head.weight_bytes, groups, partial(HeadRunner, head))


def _num_scratch_blocks(config: EngineConfig, speculative: SpeculativeConfig) -> int:
    """Enough for a draft of every sequence that begins where its blocks end."""
    blocks_each = -(-speculative.num_speculative_tokens // config.cache.block_size)
    return config.scheduler.max_num_seqs * blocks_each


def _check_tokenizer(path: Path, tokens: TokenTable, vocab_size: int) -> None:
    """A drafter must mean the same by every token id; either vocabulary may be padded further."""
    theirs = load_token_table(path)
    pairs = zip(tokens.token_bytes, theirs.token_bytes, strict=False)
    different = [token for token, (mine, other) in enumerate(pairs) if mine != other]
    if different:
        first = different[0]
        raise ConfigError(
            f"speculative_config.model: {path} has another tokenizer than the served model: "
            f"{len(different)} tokens differ, the first is {first} "
            f"({tokens.token_bytes[first]!r} here, {theirs.token_bytes[first]!r} there); a model "
            "that drafts must have the same one"
        )
    if vocab_size < tokens.vocab_size:
        raise ConfigError(
            f"speculative_config.model: {path} knows {vocab_size} tokens, the served model's "
            f"tokenizer has {tokens.vocab_size}; a model that drafts must know all of them"
        )


def with_local_drafters(
    speculative: SpeculativeConfig | None, resolve: Callable[[str], Path]
) -> SpeculativeConfig | None:
    """The configuration with drafting models as local paths.

    Args:
        speculative: or None.
        resolve: from a path or hub id to a local path.
    """
    if speculative is None:
        return None
    members = tuple(
        local
        for member in speculative.proposers
        if (local := with_local_drafters(member, resolve)) is not None
    )
    model = None if speculative.model is None else str(resolve(speculative.model))
    return replace(speculative, model=model, proposers=members)
