# SPDX-License-Identifier: Apache-2.0
"""Keyed noise: the published known answers of Philox, and the layout of the counters."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec.utils.philox import acceptance_coin, gumbel_noise, philox4x32, uniform_noise

KNOWN_ANSWERS = [
    ([0, 0, 0, 0], 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        [0xFFFFFFFF] * 4,
        0xFFFFFFFFFFFFFFFF,
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        0x299F31D0A4093822,
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "seed", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: list[int], seed: int, expected: list[int]) -> None:
    assert philox4x32(np.array([counter], np.uint32), seed)[0].tolist() == expected


def test_noise_uses_word_of_the_block() -> None:
    block = philox4x32(np.array([[2, 7, 3, 0]], np.uint32), 99)[0]
    expected = [(int(word >> 9) + 0.5) / 2**23 for word in block]
    assert uniform_noise([8, 9, 10, 11], seed=99, choice=3, position=7).tolist() == expected


def test_uniforms_are_exact_in_float32_and_inside_the_interval() -> None:
    uniforms = uniform_noise(np.arange(100_000), seed=2**63, choice=0, position=2**32 - 1)
    assert np.array_equal(uniforms.astype(np.float32).astype(np.float64), uniforms)
    assert 0 < uniforms.min() < uniforms.max() < 1
    assert abs(uniforms.mean() - 0.5) < 0.005


def test_gumbel_noise_has_its_mean_and_variance() -> None:
    noise = gumbel_noise(np.arange(200_000), seed=5, choice=1, position=2)
    assert abs(noise.mean() - np.euler_gamma) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.03


def test_coins_use_their_own_stream() -> None:
    word = int(philox4x32(np.array([[10, 7, 3, 1]], np.uint32), 99)[0, 0])
    assert acceptance_coin(10, seed=99, choice=3, position=7) == (word >> 8) / 2**24
    assert 0 <= acceptance_coin(-1, seed=99, choice=3, position=7) < 1
