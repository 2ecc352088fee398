# SPDX-License-Identifier: Apache-2.0
"""From an EngineConfig to an engine: the one place that knows concrete classes.

Importing this module does not import paddle; building an engine does. Called by the engine process,
the offline `LLM` and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.config import EngineConfig
from fdspec.core import ConfigError
from fdspec.core.drafting import DraftModel
from fdspec.engine.drafters import (
    Drafter,
    groups_of,
    load_drafters,
    start_drafters,
    with_local_drafters,
)
from fdspec.engine.engine import Engine
from fdspec.engine.kv_layout import kv_layout, layout_details
from fdspec.engine.memory import PoolSize, choose_pool_size, planned_memory_bytes
from fdspec.engine.prefill_handoff import LayerCounter
from fdspec.engine.roles import build_handoff
from fdspec.engine.stats import EngineMonitor
from fdspec.engine.warm_up import measure_step_costs
from fdspec.kv.block_pool import BlockPool
from fdspec.kv.swap_space import SwapSpace
from fdspec.models import (
    ModelOptions,
    RopeOverride,
    WeightCache,
    WeightFormats,
    checkpoint_digest,
    load_model,
    resolve_model,
    user_cache_folder,
    weight_formats,
)
from fdspec.ops import isa, num_threads, set_num_threads
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.prompt_rows import PrefillLimits
from fdspec.scheduler.swapping import Swapping
from fdspec.scheduler.topic import EngineTopic, Ready
from fdspec.spec_decode.registry import build_proposer, check_snapshots
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts
from fdspec.spec_decode.verifier import SpeculativeVerifier
from fdspec.tokenizer import TokenTable, load_token_table
from fdspec.utils.gguf_header import forget_gguf_headers
from fdspec.utils.logging import get_logger

if TYPE_CHECKING:
    from fdspec.models.decoder import LlamaFamilyModel
    from fdspec.worker.model_runner import ModelRunner

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine that is ready to step.

    Attributes:
        engine: the engine; nothing has been published on its topic.
        ready: what to tell clients about it.
        close: gives the KV cache's memory back; the engine must not be used any more.
    """

    engine: Engine
    ready: Ready
    close: Callable[[], None]


def with_local_model(config: EngineConfig) -> EngineConfig:
    """The configuration with models and `tokenizer` as local paths; hub ids are downloaded.

    Raises:
        ConfigError: no such path or model, or the hub cannot be reached.
    """
    model = config.model
    path = resolve_model(model.model, model.revision)
    tokenizer = model.tokenizer
    if tokenizer is not None:
        tokenizer = str(resolve_model(tokenizer))
    # The name under which the API serves the model stays what the user wrote.
    local = replace(
        model, model=str(path), tokenizer=tokenizer, served_model_name=model.served_names
    )
    speculative = with_local_drafters(config.speculative, resolve_model)
    return replace(config, model=local, speculative=speculative)


def build_engine(config: EngineConfig, topic: EngineTopic) -> BuiltEngine:
    """Load the model and put the parts together.

    Args:
        config: everything that the user may choose.
        topic: where commands come from and events go to.

    Raises:
        ConfigError: a setting that this model or machine cannot meet.
        CheckpointError: the model's files cannot be used.
    """
    _check_kernels()
    check_snapshots(config.speculative)
    config = with_local_model(config)
    if config.device.num_threads is not None:
        set_num_threads(config.device.num_threads)
    path = Path(config.model.model)
    tokens = load_token_table(config.model.tokenizer or path)
    model = load_model(
        path,
        ModelOptions(
            quantization=config.model.quantization,
            expert_quantization=config.model.expert_quantization,
            max_model_len=config.model.max_model_len,
            dummy_weights=config.model.load_choices == "dummy",
            rope=RopeOverride(config.model.rope_theta, config.rope_scaling),
            cache=_weight_cache(config),
        ),
    )
    forget_gguf_headers()
    if tokens.vocab_size > model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokens.vocab_size} tokens, the model only "
            f"{model.config.vocab_size}; set tokenizer to the one that belongs to the model"
        )
    drafters = load_drafters(config, model, tokens, _weight_cache(config))
    return _assemble(config, topic, tokens, model, drafters)


def _check_kernels() -> None:
    try:
        isa()
    except (ImportError, ValueError) as error:
        # Not built, or FDSPEC_ISA is wrong: the message says what to do.
        raise ConfigError(str(error)) from None


def _weight_cache(config: EngineConfig) -> WeightCache | None:
    max_bytes = int(config.model.weight_cache_gib * 2**30)
    if max_bytes == 0:
        return None
    folder = config.model.weight_cache_folder
    return WeightCache(Path(folder).expanduser() if folder else user_cache_folder(), max_bytes)


def _assemble(
    config: EngineConfig,
    topic: EngineTopic,
    tokens: TokenTable,
    model: LlamaFamilyModel,
    drafters: Sequence[Drafter],
) -> BuiltEngine:
    size = _pool_size(config, model, drafters)
    runner = _build_runner(config, model, size, drafters)
    pool = BlockPool(
        size.num_blocks,
        size.block_size,
        prefix_caching=config.cache.enable_prefix_caching,
    )
    scheduler = _build_scheduler(config, pool, model, runner.swap_space)
    models = start_drafters(drafters, runner.cache)
    drafting = build_proposer(
        config.speculative,
        vocab_size=model.config.vocab_size,
        eos_ids=(*tokens.eos_ids, *model.config.eos_ids),
        costs=_step_costs(config, runner, size, tuple(models.values())),
        models=models,
        hands_over=config.topic.splitwise_role == "prefill",
    )
    identity = _identity(config, model)
    layout = kv_layout(
        runner.cache,
        checkpoint=identity.get("checkpoint", ""),
        quantization=str(_weight_formats(config, model)),
        rope=identity.get("rope", ""),
    )
    layers = LayerCounter(lambda: runner.num_layers_appended, len(runner.cache.layers))
    built = build_handoff(config, runner.cache.memory(), layout, layers)
    engine = Engine(
        topic,
        scheduler,
        drafting.proposer,
        runner=runner,
        verifier=_build_verifier(config, tokens, model),
        monitor=EngineMonitor(scheduler, pool, built.handoff),
        handoff=built.handoff,
    )

    def close() -> None:
        built.close()
        drafting.close()
        runner.close()

    ready = _describe(config, size, model, drafting.methods)
    if identity:
        others = tuple(identity.items())
        if config.topic.hands_over:
            others += layout_details(layout)
        ready = replace(ready, details=ready.details + others, kv_endpoints=built.endpoints)
    return BuiltEngine(engine, ready, close)


def _build_runner(
    config: EngineConfig, model: LlamaFamilyModel, size: PoolSize, drafters: Sequence[Drafter]
) -> ModelRunner:
    """The runner, and what its memory holds told in the log."""
    from fdspec.worker.model_runner import ModelRunner  # imports paddle

    description = size.describe(model.max_model_len, config.scheduler.max_num_seqs)
    logger.info("%s; %s", description, config.cache.kv_cache_dtype)
    complaint = size.complaint(model.max_model_len)
    if complaint is not None:
        logger.warning("%s", complaint)
    logger.info("weights: %s", _weight_formats(config, model))
    return ModelRunner(
        model,
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        use_step_program=config.graph_optimization.use_step_program,
        swap_bytes=int(config.cache.swap_space * 1e9),
        swap_folder=config.cache.swap_space_path,
        extra=groups_of(drafters),
    )


def _weight_formats(config: EngineConfig, model: LlamaFamilyModel) -> WeightFormats:
    chosen = config.model
    return weight_formats(model.config, chosen.quantization, chosen.expert_quantization)


def _step_costs(
    config: EngineConfig, runner: ModelRunner, size: PoolSize, models: Sequence[DraftModel]
) -> StepCosts:
    """Measured if something depends on them: it takes as long as some dozens of steps."""
    speculative = config.speculative
    if speculative is None or not speculative.adaptive_draft_length:
        return TYPICAL_COSTS
    costs = measure_step_costs(
        runner, num_blocks=size.num_blocks, block_size=size.block_size, drafters=models
    )
    logger.info(
        "a draft row costs %.0f %% of a step, drafting it %.0f %%, a sequence %.0f %%: drafts that "
        "are accepted less often do not pay",
        100 * costs.row,
        100 * costs.draft,
        100 * costs.sequence,
    )
    return costs


def _pool_size(
    config: EngineConfig, model: LlamaFamilyModel, drafters: Sequence[Drafter]
) -> PoolSize:
    from fdspec.worker.model_runner import kv_cache_layout  # imports paddle

    cache = config.cache
    layout = kv_cache_layout(
        model.config,
        block_size=cache.block_size,
        dtype=cache.kv_cache_dtype,
        extra=groups_of(drafters),
    )
    weight_bytes = model.weight_bytes + sum(drafter.weight_bytes for drafter in drafters)
    return choose_pool_size(
        block_size=cache.block_size,
        block_bytes=layout.block_bytes,
        weight_bytes=weight_bytes + layout.scratch_bytes,
        memory_bytes=planned_memory_bytes(cache.memory_gib),
        utilization=cache.gpu_memory_utilization,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model.max_model_len,
        num_blocks_override=cache.num_gpu_blocks_override,
    )


def _build_scheduler(
    config: EngineConfig,
    pool: BlockPool,
    model: LlamaFamilyModel,
    swap_space: SwapSpace | None,
) -> BatchScheduler:
    speculative = config.speculative
    swapping = None
    if swap_space is not None:
        swapping = Swapping(swap_space.num_slots, swap_space.block_ms)
    return BatchScheduler(
        pool,
        vocab_size=model.config.vocab_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.token_budget(model.max_model_len),
        max_model_len=model.max_model_len,
        max_draft_rows=0 if speculative is None else speculative.draft_rows,
        prefill=PrefillLimits(
            chunked=config.scheduler.enable_chunked_prefill,
            max_partial=config.scheduler.max_num_partial_prefills,
            max_long=config.scheduler.max_long_partial_prefills,
            long_threshold=config.scheduler.long_prompt_tokens(model.max_model_len),
            max_step_ms=config.scheduler.max_step_ms,
        ),
        fair_share_by_user=config.scheduler.fair_share_by_user,
        swapping=swapping,
        hands_over=config.topic.splitwise_role == "prefill",
        opens_early=config.handoff.kv_transfer_overlap,
        disable_drafts_at=None if speculative is None else speculative.disable_by_batch_size,
    )


def _build_verifier(
    config: EngineConfig, tokens: TokenTable, model: LlamaFamilyModel
) -> SpeculativeVerifier:
    rules = {}
    if config.speculative is not None:
        rules = {
            "verify_strategy": config.speculative.verify_strategy,
            "accept_policy": config.speculative.accept_policy,
        }
    return SpeculativeVerifier(
        vocab_size=model.config.vocab_size,
        eos_ids=dict.fromkeys([*tokens.eos_ids, *model.config.eos_ids]),
        token_bytes=tokens.token_bytes,
        max_model_len=model.max_model_len,
        **rules,
    )


def _describe(
    config: EngineConfig, size: PoolSize, model: LlamaFamilyModel, methods: tuple[str, ...]
) -> Ready:
    speculative = config.speculative
    return Ready(
        vocab_size=model.config.vocab_size,
        max_model_len=model.max_model_len,
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        speculative_method=None if speculative is None else speculative.method,
        num_speculative_tokens=0 if speculative is None else speculative.num_speculative_tokens,
        speculative_methods=methods,
        details=(
            ("architecture", model.config.architecture),
            ("quantization", str(_weight_formats(config, model))),
            ("kv_cache_dtype", config.cache.kv_cache_dtype),
            ("kv_cache_bytes", str(size.num_blocks * size.block_bytes)),
            ("num_threads", str(num_threads())),
        ),
    )


def _identity(config: EngineConfig, model: LlamaFamilyModel) -> dict[str, str]:
    """What else decides which tokens come out: the workers of a topic must agree about it."""
    if not config.topic.is_shared:
        return {}
    speculative = config.speculative
    strategy = "target_match" if speculative is None else speculative.verify_strategy
    folder = Path(config.model.weight_cache_folder or user_cache_folder()).expanduser()
    digest = "random weights"
    if config.model.load_choices != "dummy":
        digest = checkpoint_digest(Path(config.model.model), folder)
    rope = f"theta {model.config.rope_theta:g}, scaling {model.config.rope_scaling}"
    return {"verify_strategy": strategy, "checkpoint": digest, "rope": rope}
