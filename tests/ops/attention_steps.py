# SPDX-License-Identifier: Apache-2.0
"""Steps of attention to test with: sequences with their tokens' queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdspec.ops import append_paged_kv, cascade_append_attention
from fdspec.utils.int8_entries import SCALE_BYTES

# NaN, and the numpy type of a cache; four bytes of -1 are a NaN.
UNWRITTEN: dict[str, tuple[Any, Any]] = {
    "float32": (np.nan, np.float32),
    "bfloat16": (0x7FC0, np.uint16),
    "int8": (-1, np.int8),
}


def chain(length: int) -> list[int]:
    """Parents of rows that follow each other."""
    return list(range(-1, length - 1))


@dataclass(frozen=True)
class Shape:
    """Heads and cache layout."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 64
    dtype: str = "bfloat16"

    @property
    def entry_size(self) -> int:
        """Elements of a cached key or value."""
        return self.head_dim + (SCALE_BYTES if self.dtype == "int8" else 0)


@dataclass(frozen=True)
class Tokens:
    """Query, key and value of some tokens: [tokens, heads or kv_heads, head_dim] float32."""

    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]

    def __getitem__(self, index: Any) -> Tokens:
        return Tokens(self.query[index], self.key[index], self.value[index])

    def __len__(self) -> int:
        return len(self.query)


def random_tokens(shape: Shape, count: int, seed: int = 0) -> Tokens:
    """Tokens of standard normal entries."""
    generator = np.random.default_rng(seed)

    def draw(heads: int) -> NDArray[np.float32]:
        return generator.normal(size=(count, heads, shape.head_dim)).astype(np.float32)

    return Tokens(draw(shape.heads), draw(shape.kv_heads), draw(shape.kv_heads))


class Cache:
    """A paged cache of some sequences, whose blocks lie in a random order."""

    def __init__(self, shape: Shape, max_tokens: Sequence[int], seed: int = 0) -> None:
        self.shape = shape
        counts = [-(-tokens // shape.block_size) for tokens in max_tokens]
        total = sum(counts) + 2
        size = (total, shape.kv_heads, shape.block_size, shape.entry_size)
        # What has not been written must not matter, not even if it is NaN.
        fill, dtype = UNWRITTEN[shape.dtype]
        self.key = np.full(size, fill, dtype)
        self.value = np.full(size, fill, dtype)
        order = np.random.default_rng(seed).permutation(total)
        self.table = np.full((len(counts), max(counts, default=0) + 1), -1, np.int32)
        for sequence, count in enumerate(counts):
            self.table[sequence, :count] = order[:count]
            order = order[count:]

    def append(self, sequence: int, start: int, tokens: Tokens) -> None:
        """Write tokens to the slots from `start` on."""
        slots = np.arange(start, start + len(tokens))
        blocks = self.table[sequence, slots // self.shape.block_size].astype(np.int64)
        at = blocks * self.shape.block_size + slots % self.shape.block_size
        append_paged_kv(tokens.key, tokens.value, self.key, self.value, at)

    def arguments(
        self,
        queries: Sequence[NDArray[np.float32]],
        contexts: Sequence[int],
        parents: Sequence[Sequence[int]],
    ) -> tuple[Any, ...]:
        """Arguments of cascade_append_attention for rows that have been appended."""
        empty = np.zeros((0, self.shape.heads, self.shape.head_dim), np.float32)
        return (
            np.concatenate([empty, *queries]),
            self.key,
            self.value,
            self.table,
            np.cumsum([0, *(len(query) for query in queries)]).astype(np.int32),
            np.array(contexts, np.int32),
            np.array([parent for rows in parents for parent in rows], np.int32),
            self.shape.head_dim**-0.5,
        )


def attend(shape: Shape, context: Tokens, rows: Tokens, parents: Sequence[int]) -> Any:
    """Attention of one sequence's rows after its context, in one step."""
    cache = Cache(shape, [len(context) + len(rows)])
    cache.append(0, 0, context)
    cache.append(0, len(context), rows)
    return cascade_append_attention(*cache.arguments([rows.query], [len(context)], [parents]))


def mixed_step(shape: Shape, seed: int = 0) -> tuple[Any, ...]:
    """A prompt chunk, decode rows, chains and trees of drafts, and a sequence without rows."""
    sequences: list[tuple[int, list[int]]] = [
        (0, chain(70)),
        (130, chain(1)),
        (63, chain(6)),
        (65, []),
        (127, [-1, 0, 0, 1, 1, 2, -1, 6, 7]),
        (5, [-1, -1, -1]),
        (200, [-1, 0, 1, 1, 3, 3, 2]),
    ]
    cache = Cache(shape, [context + len(parents) for context, parents in sequences], seed)
    queries = []
    for index, (context, parents) in enumerate(sequences):
        tokens = random_tokens(shape, context + len(parents), seed + index)
        cache.append(index, 0, tokens)
        queries.append(tokens.query[context:])
    return cache.arguments(
        queries, [context for context, _ in sequences], [parents for _, parents in sequences]
    )
