# SPDX-License-Identifier: Apache-2.0
"""The size of the KV cache follows from the memory, the weights and what can be used at all."""

import pytest

from fdspec.core import ConfigError
from fdspec.engine.memory import GIB, choose_pool_size, machine_memory_bytes


def choose(**changes):
    values = {
        "block_size": 64,
        "block_bytes": 2**20,
        "weight_bytes": GIB,
        "memory_bytes": 8 * GIB,
        "utilization": 0.5,
        "max_num_seqs": 1000,
        "max_model_len": 4096,
        **changes,
    }
    return choose_pool_size(**values)


def test_the_share_of_the_memory_less_the_weights():
    assert choose().num_blocks == 3 * 1024
    assert choose().num_tokens == 3 * 1024 * 64


def test_no_more_than_all_sequences_can_fill():
    assert choose(max_num_seqs=2, max_model_len=100).num_blocks == 4


def test_an_override_is_taken_as_it_is():
    assert choose(num_blocks_override=7, weight_bytes=99 * GIB).num_blocks == 7


def test_weights_that_leave_no_room():
    with pytest.raises(ConfigError) as caught:
        choose(weight_bytes=4 * GIB)
    for word in ("gpu_memory_utilization 0.5", "8.0 GiB", "4.00 GiB", "num_gpu_blocks_override"):
        assert word in str(caught.value)


def test_described_in_plain_words():
    text = choose(max_num_seqs=3).describe(4096, 3)
    for word in ("12288 tokens", "192 blocks of 64", "0.20 GB", "once: 3 of 4096 tokens, or 3 of"):
        assert word in text
    text = choose(max_num_seqs=100, num_blocks_override=100).describe(4096, 100)
    assert "requests at once: 1 of 4096 tokens, or 6 of 1024 tokens (max_num_seqs 100)" in text
    assert "at once: 10 of 500 tokens (max" in choose(num_blocks_override=80).describe(500, 16)


def test_the_longest_that_fits_is_named():
    assert choose(num_blocks_override=64).complaint(4096) is None
    assert choose(num_blocks_override=63).complaint(4033) is None
    text = choose(num_blocks_override=63).complaint(4096)
    assert text is not None
    assert "holds 4032 tokens" in text and "the longest that fits is 4033" in text


def test_this_machine_has_memory():
    assert 2**28 < machine_memory_bytes() < 2**50
