# SPDX-License-Identifier: Apache-2.0
"""KVLayout: what must be equal at both ends, so that bytes of a block mean the same to both."""

from __future__ import annotations

import msgspec
import xxhash

from fdspec.transfer.errors import LayoutMismatch


class KVLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a block's bytes depend on, besides the tokens.

    Pools may differ in their number of blocks, and servers in everything else.

    Attributes:
        model: digest of the checkpoint, drafting layers included.
        quantization: format of the weights.
        rope: scaling of the rotary frequencies, in words.
        numerics: kernel revision and device family; equal ids give equal bits.
        kv_cache_dtype: "bfloat16", "float32", "int8".
        num_layers: layers that have a cache, drafting layers included.
        num_kv_heads, head_dim: of each layer.
        block_size: tokens in a block.
        drafting: shapes of what drafting models keep beside the layers, in words; empty if nothing.
    """

    model: str
    quantization: str
    rope: str
    numerics: str
    kv_cache_dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    drafting: str = ""

    @property
    def digest(self) -> str:
        """Short name of the whole layout; equal layouts have equal names."""
        return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(self))

    def check_equals(self, theirs: KVLayout) -> None:
        """Compare with a peer's.

        Raises:
            LayoutMismatch: names the first field that differs.
        """
        for field in self.__struct_fields__:
            mine, other = getattr(self, field), getattr(theirs, field)
            if mine != other:
                raise LayoutMismatch(field, mine, other)
