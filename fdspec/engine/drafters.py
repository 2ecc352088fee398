# SPDX-License-Identifier: Apache-2.0
"""The models that draft: loading them, and checking that they fit the target. Called by `build.py`.

Importing this module does not import paddle; loading a model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.config import EngineConfig, SpeculativeConfig
from fdspec.config.speculative import MODEL_METHODS
from fdspec.core import ConfigError
from fdspec.models import ModelOptions, WeightCache, load_model, read_model_config
from fdspec.tokenizer import TokenTable, load_token_table

if TYPE_CHECKING:
    from fdspec.core.drafting import DraftModel
    from fdspec.kv.cache import ExtraLayers, KVCache
    from fdspec.models.decoder import LlamaFamilyModel


@dataclass(frozen=True, slots=True)
class Drafter:
    """A loaded model that drafts.

    Attributes:
        method: that it drafts for.
        model: the model.
        layers: what it keeps in the blocks of the target's cache.
    """

    method: str
    model: LlamaFamilyModel
    layers: ExtraLayers

    @property
    def weight_bytes(self) -> int:
        """Memory of its weights."""
        return self.model.weight_bytes

    def over(self, cache: KVCache, group: int) -> DraftModel:
        """The model over a cache whose extra layers of that group are its own."""
        from fdspec.worker.draft_runner import DraftRunner  # imports paddle

        return DraftRunner(self.model, cache, group)


def load_drafters(
    config: EngineConfig, tokens: TokenTable, max_model_len: int, weights: WeightCache | None
) -> tuple[Drafter, ...]:
    """All models that the configuration drafts with.

    Args:
        config: whose paths are local.
        tokens: of the target.
        max_model_len: of the target.
        weights: where packed weights are kept.

    Raises:
        ConfigError: a model has another tokenizer, or cannot be loaded as it is asked for.
        CheckpointError: a model's files cannot be used.
    """
    if config.speculative is None:
        return ()
    return tuple(
        _load(config, member, tokens, max_model_len, weights)
        for member in config.speculative.members
        if member.method in MODEL_METHODS
    )


def layers_of(drafters: Sequence[Drafter]) -> tuple[ExtraLayers, ...]:
    """What all of them keep in the cache, group by group."""
    return tuple(drafter.layers for drafter in drafters)


def _load(
    config: EngineConfig,
    speculative: SpeculativeConfig,
    tokens: TokenTable,
    max_model_len: int,
    weights: WeightCache | None,
) -> Drafter:
    from fdspec.worker.draft_runner import draft_model_layers  # imports paddle

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
            max_model_len=min(max_model_len, stored.longest_context),
            dummy_weights=is_dummy,
            cache=weights,
        ),
    )
    layers = draft_model_layers(
        model,
        dtype=config.cache.kv_cache_dtype,
        num_scratch_blocks=config.scheduler.max_num_seqs
        * -(-speculative.num_speculative_tokens // config.cache.block_size),
    )
    return Drafter(speculative.method, model, layers)


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
