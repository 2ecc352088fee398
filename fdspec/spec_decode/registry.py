# SPDX-License-Identifier: Apache-2.0
"""Which proposer a method names. Called by `engine/build.py`; config maps foreign names.

Other packages add methods by an entry point of the group `fdspec.proposers`, whose name is the
method and which loads a function from SpeculativeConfig to a proposer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from fdspec.config import SpeculativeConfig
from fdspec.config.plugins import PROPOSERS
from fdspec.core import ConfigError
from fdspec.core.drafting import DraftModel
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.hybrid import HybridProposer
from fdspec.spec_decode.lookahead import LookaheadProposer
from fdspec.spec_decode.memory import MemoryProposer
from fdspec.spec_decode.model_proposer import ModelProposer
from fdspec.spec_decode.mtp_strategy import NgramFirst, WithNgram
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.prediction import PredictionProposer
from fdspec.spec_decode.snapshot import SnapshotError, read_snapshot, write_snapshot
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts
from fdspec.spec_decode.suffix import SuffixProposer
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_NO_MODELS: Mapping[str, DraftModel] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BuiltProposer:
    """A proposer with what belongs to it.

    Attributes:
        proposer: what the engine asks.
        methods: what requests may ask for by `speculative.method`.
        close: writes down what is to be kept; the proposer must not be used any more.
    """

    proposer: Proposer
    methods: tuple[str, ...]
    close: Callable[[], None]


def build_proposer(
    config: SpeculativeConfig | None,
    *,
    vocab_size: int,
    eos_ids: Iterable[int] = (),
    costs: StepCosts = TYPICAL_COSTS,
    models: Mapping[str, DraftModel] = _NO_MODELS,
    hands_over: bool = False,
) -> BuiltProposer:
    """The proposer that a configuration asks for.

    Args:
        config: None means plain decoding.
        vocab_size: of the model.
        eos_ids: its tokens that end a text.
        costs: of steps; they decide how long drafts may be where this is adaptive.
        models: by method, for those that draft with a model.
        hands_over: blocks are given to another engine at the end of a step.

    Raises:
        ConfigError: a plug-in cannot be loaded.
    """
    if config is None or config.method == "naive":
        return BuiltProposer(NaiveProposer(), (), lambda: None)
    configs = config.members
    members: dict[str, Proposer] = {}
    if all(member.method != "prediction" for member in configs):
        members["prediction"] = PredictionProposer(config.num_speculative_tokens)
    snapshots: list[Callable[[], None]] = []
    for member in configs:
        proposer: Proposer
        if member.method == "lookahead":
            proposer = _lookahead(member, eos_ids, costs if config.adaptive_draft_length else None)
        else:
            proposer = _build(member, models, hands_over)
        members[member.method] = proposer
        if isinstance(proposer, MemoryProposer) and member.memory_snapshot is not None:
            path = Path(member.memory_snapshot).expanduser()
            _restore(proposer, path, vocab_size)
            snapshots.append(_saver(proposer, path, vocab_size))
    combined: Proposer = HybridProposer(members, costs)
    if config.adaptive_draft_length:
        combined = AdaptiveProposer(combined, costs)
    methods = tuple(dict.fromkeys([config.method, *(member.method for member in configs)]))

    def close() -> None:
        for save in snapshots:
            save()

    return BuiltProposer(combined, methods, close)


def check_snapshots(config: SpeculativeConfig | None) -> None:
    """See that snapshots can be written at the end, before anything else takes time.

    Raises:
        ConfigError: the folder of a memory_snapshot does not exist or cannot be written.
    """
    for member in config.members if config is not None else ():
        if member.method != "memory" or member.memory_snapshot is None:
            continue
        path = Path(member.memory_snapshot).expanduser()
        if path.is_dir():
            raise ConfigError(f"memory_snapshot: {path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ConfigError(
                f"memory_snapshot: {path}: there is no folder {path.parent}; make it, or name a "
                "file in another one"
            )
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"memory_snapshot: {path}: this user may not write to {path.parent}; change that, "
                "or name a file in another folder"
            )


def _build(
    config: SpeculativeConfig, models: Mapping[str, DraftModel], hands_over: bool
) -> Proposer:
    """One proposer by itself."""
    count, max_bytes = config.num_speculative_tokens, config.draft_cache_mib * 2**20
    if config.method == "ngram":
        return NgramProposer(
            count, max_ngram_size=config.max_ngram_size, min_ngram_size=config.min_ngram_size
        )
    if config.method == "suffix":
        return SuffixProposer(
            count,
            max_tree_depth=config.suffix_decoding_max_tree_depth,
            max_cached_requests=config.suffix_decoding_max_cached_requests,
            max_spec_factor=config.suffix_decoding_max_spec_factor,
            min_token_prob=config.suffix_decoding_min_token_prob,
            max_bytes=max_bytes,
        )
    if config.method == "memory":
        return MemoryProposer(count, max_bytes=max_bytes)
    if config.method == "prediction":
        return PredictionProposer(count)
    if config.method in models:
        return _drafting_with(models[config.method], config, hands_over)
    return _plugin(config)


def _lookahead(
    config: SpeculativeConfig, eos_ids: Iterable[int], costs: StepCosts | None
) -> LookaheadProposer:
    return LookaheadProposer(
        level=config.level,
        window=config.window,
        guess_set_size=config.guess_set_size,
        num_speculative_tokens=config.num_speculative_tokens,
        eos_ids=eos_ids,
        costs=costs,
    )


def _drafting_with(model: DraftModel, config: SpeculativeConfig, hands_over: bool) -> Proposer:
    """A model, alone or together with n-gram matches."""
    count, steps = config.num_speculative_tokens, config.num_model_steps or 0
    proposer = ModelProposer(
        model, steps or count, source=config.method, catches_up_at_once=hands_over
    )
    sizes = {"max_ngram_size": config.max_ngram_size, "min_ngram_size": config.min_ngram_size}
    if config.mtp_strategy == "ngram_first":
        return NgramFirst(proposer, NgramProposer(count, **sizes))
    if config.mtp_strategy == "with_ngram":
        return WithNgram(proposer, count, **sizes)
    return proposer


def _plugin(config: SpeculativeConfig) -> Proposer:
    (point, *_) = entry_points(group=PROPOSERS, name=config.method)
    try:
        proposer: Proposer = point.load()(config)
    except Exception as error:
        raise ConfigError(
            f"speculative_config.method: {config.method}: the plug-in {point.value} cannot be "
            f"used: {type(error).__name__}: {error}"
        ) from error
    return proposer


def _restore(proposer: MemoryProposer, path: Path, vocab_size: int) -> None:
    """Fill a proposer from a file; without a good one it starts empty."""
    if not path.exists():
        return
    try:
        texts = read_snapshot(path, vocab_size)
    except (OSError, SnapshotError) as error:
        logger.warning("memory_snapshot: %s is not used: %s", path, error)
        return
    for text in texts:
        proposer.cache.put(text)
    logger.info("memory_snapshot: %d texts from %s", len(texts), path)


def _saver(proposer: MemoryProposer, path: Path, vocab_size: int) -> Callable[[], None]:
    def save() -> None:
        try:
            write_snapshot(path, proposer.cache.texts(), vocab_size)
        except OSError as error:
            logger.warning("memory_snapshot: %s cannot be written: %s", path, error)

    return save
