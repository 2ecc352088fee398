# SPDX-License-Identifier: Apache-2.0
"""The pool gives every block to one holder at a time and gets every block back."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fdspec.kv.block_pool import BlockPool


def test_gives_each_block_once_and_nothing_when_short():
    pool = BlockPool(5, block_size=4)
    first = pool.allocate(3)
    assert first is not None and len(set(first)) == 3
    assert pool.num_free() == 2
    assert pool.allocate(3) is None
    assert pool.num_free() == 2, "a refused allocation must take nothing"
    second = pool.allocate(2)
    assert second is not None and set(first) | set(second) == set(range(5))
    assert pool.allocate(0) == []


def test_release_makes_blocks_available():
    pool = BlockPool(2, block_size=4)
    held = pool.allocate(2)
    assert held is not None
    pool.release(held[:1])
    assert pool.allocate(1) == held[:1]


def test_double_release_is_caught():
    pool = BlockPool(2, block_size=4)
    held = pool.allocate(1)
    assert held is not None
    pool.release(held)
    with pytest.raises(AssertionError, match="not held"):
        pool.release(held)


def test_check_finds_broken_books():
    pool = BlockPool(3, block_size=4)
    pool.check()
    pool._free.pop()
    with pytest.raises(AssertionError, match="!= 3 blocks"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Random allocations and releases against a set of held blocks."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, block_size=2)
        self.model: set[int] = set()

    @rule(target=held, count=st.integers(0, 8))
    def allocate(self, count):
        blocks = self.pool.allocate(count)
        if blocks is None:
            assert count > 7 - len(self.model)
            return []
        assert len(blocks) == count
        assert self.model.isdisjoint(blocks)
        self.model.update(blocks)
        return blocks

    @rule(blocks=consumes(held))
    def release(self, blocks):
        self.pool.release(blocks)
        self.model.difference_update(blocks)

    @invariant()
    def books_balance(self):
        self.pool.check()
        assert self.pool.num_free() == 7 - len(self.model)


TestPoolMachine = PoolMachine.TestCase
