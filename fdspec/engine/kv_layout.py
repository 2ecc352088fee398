# SPDX-License-Identifier: Apache-2.0
"""What another engine's KV cache must have in common with ours, so that its blocks can be used."""

from __future__ import annotations

from fdspec.kv.cache import KVCache
from fdspec.transfer import KVLayout
from fdspec.version import __version__

PREFIX = "kv_"


def kv_layout(cache: KVCache, *, checkpoint: str, quantization: str, rope: str) -> KVLayout:
    """The layout of a cache, with every layer in it, whoever writes it.

    Args:
        cache: of the engine's runner.
        checkpoint: digest of the weights.
        quantization: format of the weights.
        rope: rotary frequencies, in words.
    """
    shape = cache.layout
    return KVLayout(
        model=checkpoint,
        quantization=quantization,
        rope=rope,
        # Kernels give equal bits at every instruction-set level.
        numerics=f"cpu {__version__}",
        kv_cache_dtype=shape.dtype,
        num_layers=cache.memory().num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=shape.block_size,
        drafting="; ".join(
            f"{group.num_layers} layers, {group.num_arrays} x {group.num_heads} x {group.head_dim} "
            f"{group.dtype}"
            for group in shape.extra
        ),
    )


def layout_details(layout: KVLayout) -> tuple[tuple[str, str], ...]:
    """The layout for other workers of the topic, which compare it before they join."""
    return tuple((f"{PREFIX}{name}", str(getattr(layout, name))) for name in _COMPARED)


# The other fields are compared for all workers, whether they hand over or not.
_COMPARED = ("numerics", "num_layers", "num_kv_heads", "head_dim", "block_size", "drafting")
