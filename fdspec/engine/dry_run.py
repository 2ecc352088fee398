# SPDX-License-Identifier: Apache-2.0
"""What a configuration needs of memory, without weights: `api_server --dry-run`. Pure arithmetic.

The model's config.json (or GGUF file) must be there; nothing else of it is read. Never imports
paddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fdspec.config import EngineConfig, SpeculativeConfig
from fdspec.core import ConfigError
from fdspec.engine.memory import GIB, PoolSize, choose_pool_size, machine_memory_bytes
from fdspec.kv.cache import ExtraLayers, KVCacheLayout
from fdspec.models import ModelConfig, RopeOverride, read_model_config, weight_formats
from fdspec.models.files import find_checkpoint
from fdspec.models.weight_sizes import (
    WeightPart,
    kv_heads_of_rank,
    mtp_layer_bytes,
    weight_parts,
)

_NAME_WIDTH = 26


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result.

    Attributes:
        text: for people.
        fits: weights and at least one block of KV cache have room.
        weight_bytes: of one rank.
        pool: KV cache of one rank; None if it does not fit.
    """

    text: str
    fits: bool
    weight_bytes: int
    pool: PoolSize | None


def dry_run(config: EngineConfig) -> DryRun:
    """Plan the memory of each rank as a start would.

    Args:
        config: of the server; `model` is a folder or file on this machine.

    Raises:
        CheckpointError: no architecture can be read there.
        ConfigError: a setting that the model cannot meet, or ranks that cannot divide it.
    """
    num_ranks = config.device.tensor_parallel_size
    stored = read_model_config(Path(config.model.model).expanduser())
    model = RopeOverride(config.model.rope_theta, config.rope_scaling).apply(stored)
    max_model_len = model.resolve_max_model_len(config.model.max_model_len)
    # As at a start: a budget that is too small for such prompts is an error.
    config.scheduler.token_budget(max_model_len)
    formats = weight_formats(model, config.model.quantization, config.model.expert_quantization)
    parts = weight_parts(model, formats, num_ranks=num_ranks, max_model_len=max_model_len)
    if model.dtype == "gguf" and formats.dense is None:
        parts = _parts_as_in_the_file(model, parts, num_ranks)
    used = sum(part.num_used for part in parts)
    total = sum(part.num_weights for part in parts)
    drafting, extra_layers = _drafting_models(config, model, max_model_len)
    parts = (*parts, *drafting)
    weight_bytes = sum(part.rank_bytes for part in parts)
    memory_bytes, memory = _memory_of_rank(config, num_ranks)
    layout = KVCacheLayout(
        num_layers=model.num_layers,
        num_kv_heads=kv_heads_of_rank(model, num_ranks),
        head_dim=model.head_dim,
        block_size=config.cache.block_size,
        dtype=config.cache.kv_cache_dtype,
        extra=extra_layers,
    )
    pool, problem = _choose_pool(
        config, layout, memory_bytes=memory_bytes, weight_bytes=weight_bytes, max_len=max_model_len
    )
    lines = [
        f"{model.architecture} ({model.source})",
        f"weights: {total / 1e9:.2f} billion, {used / 1e9:.2f} for a token; held as {formats}",
        f"memory of each of {num_ranks} ranks:" if num_ranks > 1 else "memory:",
        *_table(parts, weight_bytes),
        f"planned for: {memory}",
    ]
    if pool is None:
        lines.append(f"fits: no; {problem}")
    else:
        lines.append(pool.describe(max_model_len, config.scheduler.max_num_seqs))
        complaint = pool.complaint(max_model_len)
        lines += [] if complaint is None else [complaint]
        lines.append(f"fits: yes, {_gib(weight_bytes + pool.num_blocks * pool.block_bytes)} GiB")
    return DryRun("\n".join(lines), pool is not None, weight_bytes, pool)


def _parts_as_in_the_file(
    model: ModelConfig, parts: Sequence[WeightPart], num_ranks: int
) -> tuple[WeightPart, ...]:
    """A GGUF file's weights stay as they are, so they take what the file takes."""
    matrices = WeightPart(
        "matrices as in the file",
        sum(part.num_weights for part in parts),
        sum(part.num_used for part in parts),
        -(-Path(model.source).stat().st_size // num_ranks),
    )
    tables = [replace(part, num_weights=0, num_used=0) for part in parts if not part.num_weights]
    return (matrices, *tables)


def _drafting_models(
    config: EngineConfig, target: ModelConfig, max_model_len: int
) -> tuple[tuple[WeightPart, ...], tuple[ExtraLayers, ...]]:
    """Weights of models that draft, and their layers in the KV cache; all are on every rank."""
    parts: list[WeightPart] = []
    layers: list[ExtraLayers] = []
    for member in () if config.speculative is None else config.speculative.members:
        scratch_blocks = -(-member.num_speculative_tokens // config.cache.block_size)
        num_scratch = config.scheduler.max_num_seqs * scratch_blocks
        if member.method == "mtp":
            num_bytes, model = _mtp_layer(member, target), replace(target, num_layers=1)
            layers.append(ExtraLayers(1, 1, 1, target.hidden_size, "bfloat16"))
        elif member.method == "draft_model" and member.model is not None:
            model = read_model_config(Path(member.model).expanduser())
            formats = weight_formats(model, member.quantization, None)
            length = min(max_model_len, model.longest_context)
            weights = weight_parts(model, formats, num_ranks=1, max_model_len=length)
            num_bytes = sum(part.rank_bytes for part in weights)
        else:
            continue
        parts.append(WeightPart(f"{member.method} for drafts", 0, 0, num_bytes))
        shape = (model.num_layers, 2, model.num_kv_heads, model.head_dim)
        layers.append(ExtraLayers(*shape, config.cache.kv_cache_dtype, num_scratch))
    return tuple(parts), tuple(layers)


def _mtp_layer(member: SpeculativeConfig, target: ModelConfig) -> int:
    """Bytes of the layer that the target brings along, or of the folder of a trained head."""
    if member.model is None:
        return mtp_layer_bytes(target, member.quantization)
    files = find_checkpoint(Path(member.model).expanduser()).weights
    return sum(file.stat().st_size for file in files)


def _memory_of_rank(config: EngineConfig, num_ranks: int) -> tuple[int, str]:
    """Bytes, and where they come from."""
    share = f"x gpu_memory_utilization {config.cache.gpu_memory_utilization:g}"
    if config.cache.memory_gib is not None:
        return int(config.cache.memory_gib * GIB), f"memory_gib {config.cache.memory_gib:g} {share}"
    machine = machine_memory_bytes()
    divided = f" / {num_ranks} ranks" if num_ranks > 1 else ""
    return machine // num_ranks, f"this machine's {_gib(machine)} GiB{divided} {share}"


def _choose_pool(
    config: EngineConfig,
    layout: KVCacheLayout,
    *,
    memory_bytes: int,
    weight_bytes: int,
    max_len: int,
) -> tuple[PoolSize | None, str]:
    """The KV cache of a rank, or None and why not."""
    cache = config.cache
    try:
        pool = choose_pool_size(
            block_size=cache.block_size,
            block_bytes=layout.block_bytes,
            weight_bytes=weight_bytes + layout.scratch_bytes,
            memory_bytes=memory_bytes,
            utilization=cache.gpu_memory_utilization,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=max_len,
            num_blocks_override=cache.num_gpu_blocks_override,
        )
    except ConfigError as error:
        return None, str(error)
    needed_bytes = weight_bytes + pool.num_blocks * pool.block_bytes
    if needed_bytes > memory_bytes:
        # Only an override can ask for that.
        return None, (
            f"num_gpu_blocks_override {pool.num_blocks} needs {_gib(needed_bytes)} GiB with the "
            f"weights, and there are {_gib(memory_bytes)} GiB"
        )
    return pool, ""


def _table(parts: Sequence[WeightPart], weight_bytes: int) -> list[str]:
    rows = [(part.name, part.rank_bytes) for part in parts if part.rank_bytes]
    return [
        f"  {name:<{_NAME_WIDTH}} {_gib(size):>9} GiB"
        for name, size in [*rows, ("weights together", weight_bytes)]
    ]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3f}"
