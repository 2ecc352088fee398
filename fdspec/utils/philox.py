# SPDX-License-Identifier: Apache-2.0
"""Keyed random numbers: pure functions of (seed, choice, position, token id), without any state.

Owns the definition of the noise that the sampling kernels compute, and the coins of rejection.
Never holds a stream; called by references, tests and the rejection rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The counter of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"):
#
#     word 0           word 1     word 2   word 3
#     token_id // 4    position   choice   0        noise: word token_id % 4 of the block
#     token_id         position   choice   1        coins: word 0 of the block
#
# Word 3 keeps the two apart. The key is the seed: low 32 bits, high 32 bits.
NOISE_STREAM = 0
COIN_STREAM = 1

_NUM_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD = 0xFFFFFFFF

# A number, or an array of uint64: the arithmetic is the same.
Word = Any


def philox4x32(counters: NDArray[np.uint32], seed: int) -> NDArray[np.uint32]:
    """Blocks of four random words, Philox4x32 with ten rounds.

    Args:
        counters: [n, 4] uint32, one counter for each block.
        seed: key, 0 .. 2**64 - 1.

    Returns:
        [n, 4] uint32.
    """
    a, b, c, d = (counters[:, i].astype(np.uint64) for i in range(4))
    return np.stack(_mix(a, b, c, d, seed), axis=1).astype(np.uint32)


def uniform_noise(
    token_ids: ArrayLike, *, seed: int, choice: int, position: int
) -> NDArray[np.float64]:
    """Uniforms of the noise, one for each token: (k + 1/2) / 2**23 with a random 23-bit k.

    Every value is exact in float32, and none is 0 or 1.

    Args:
        token_ids: [n] non-negative ids.
        seed: key of the request, 0 .. 2**64 - 1.
        choice: index of the choice, 0 .. 2**32 - 1.
        position: index of the output token that is chosen, 0 .. 2**32 - 1.

    Returns:
        [n] float64 in (0, 1).
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    words = philox4x32(_counters(ids // 4, position, choice, NOISE_STREAM), seed)
    fraction = words[np.arange(len(ids)), ids % 4] >> np.uint32(9)
    return (fraction.astype(np.float64) + 0.5) * 2.0**-23


def gumbel_noise(
    token_ids: ArrayLike, *, seed: int, choice: int, position: int
) -> NDArray[np.float64]:
    """Gumbel noise of tokens; argmax of log-probabilities plus this is a sample of their law.

    Args:
        token_ids: [n] non-negative ids.
        seed: see `uniform_noise`.
        choice: see `uniform_noise`.
        position: see `uniform_noise`.

    Returns:
        [n] float64, -log(-log(u)).
    """
    uniforms = uniform_noise(token_ids, seed=seed, choice=choice, position=position)
    return -np.log(-np.log(uniforms))


def acceptance_coin(token_id: int, *, seed: int, choice: int, position: int) -> float:
    """The coin that decides whether rejection accepts a draft token.

    Args:
        token_id: the draft token.
        seed: see `uniform_noise`.
        choice: see `uniform_noise`.
        position: output index that the draft token would take.

    Returns:
        A multiple of 2**-24 in [0, 1), exact in float32.
    """
    # An id outside the vocabulary, even a negative one, still has a coin; it is never accepted.
    word, *_ = _mix(token_id & _LOW_WORD, position, choice, COIN_STREAM, seed)
    return float(word >> 8) * 2.0**-24


def _mix(a: Word, b: Word, c: Word, d: Word, seed: int) -> tuple[Word, Word, Word, Word]:
    """The rounds of Philox on the four words of one counter or of many."""
    key_low, key_high = seed & _LOW_WORD, seed >> 32
    for _ in range(_NUM_ROUNDS):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b = (second >> 32) ^ b ^ key_low, second & _LOW_WORD
        c, d = (first >> 32) ^ d ^ key_high, first & _LOW_WORD
        key_low = (key_low + _KEY_STEPS[0]) & _LOW_WORD
        key_high = (key_high + _KEY_STEPS[1]) & _LOW_WORD
    return a, b, c, d


def _counters(
    first: NDArray[np.int64], position: int, choice: int, stream: int
) -> NDArray[np.uint32]:
    counters = np.empty((len(first), 4), dtype=np.uint32)
    counters[:, 0] = first
    counters[:, 1:] = (position, choice, stream)
    return counters
