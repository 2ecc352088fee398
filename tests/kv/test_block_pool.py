# SPDX-License-Identifier: Apache-2.0
"""The pool knows how many hold a block, gets every block back, and evicts what was used least."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fdspec.kv.block_pool import BlockPool
from fdspec.kv.prefix_index import extend_digests, root_digest


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


def names(tokens):
    digests = [root_digest("")]
    extend_digests(digests, np.array(tokens, np.int32), 2)
    return digests


class Sequence:
    """Holds blocks of two tokens for some tokens, all of them computed and published."""

    def __init__(self, pool, tokens):
        self.pool = pool
        self.digests = names(tokens)
        array = np.array(tokens, np.int32)
        found = pool.match(self.digests, array)
        pool.share(found.block_ids)
        fresh = pool.allocate(-(-len(tokens) // 2) - len(found.block_ids))
        if fresh is None:
            pool.release(reversed(found.block_ids))
        self.fits = fresh is not None
        self.blocks = [] if fresh is None else [*found.block_ids, *fresh]
        self.num_found = 2 * len(found.block_ids) + found.num_partial
        for index in range(len(found.block_ids), len(self.blocks)):
            piece = array[2 * index : 2 * index + 2]
            digest = self.digests[index + 1] if len(piece) == 2 else None
            self.blocks[index] = pool.publish(
                self.blocks[index], self.digests[index], piece, digest
            )

    def release(self):
        self.pool.release(reversed(self.blocks))


def test_cached_blocks_are_shared_and_survive_their_holders():
    pool = BlockPool(6, block_size=2)
    first = Sequence(pool, range(5))
    second = Sequence(pool, [0, 1, 2, 3, 9])
    assert second.blocks[:2] == first.blocks[:2] and second.blocks[2] != first.blocks[2]
    assert pool.num_holders(first.blocks[0]) == 2 and pool.num_free() == 2
    first.release()
    assert pool.num_free() == 3
    second.release()
    assert pool.num_free() == 6 and pool.num_cached == 4
    assert Sequence(pool, range(5)).num_found == 5
    pool.check()


def test_equal_blocks_become_one():
    pool = BlockPool(4, block_size=2)
    digests = names([1, 2])
    first, second = pool.allocate(2) or (0, 0)
    tokens = np.array([1, 2], np.int32)
    assert pool.publish(first, digests[0], tokens, digests[1]) == first
    assert pool.publish(second, digests[0], tokens, digests[1]) == first
    assert pool.num_holders(first) == 2 and pool.num_free() == 3
    pool.check()


def test_what_was_used_least_recently_goes_first_and_leaves_before_their_prefix():
    pool = BlockPool(4, block_size=2)
    Sequence(pool, [1, 2, 3, 4]).release()
    Sequence(pool, [5, 6, 7, 8]).release()
    Sequence(pool, [1, 2]).release()
    pool.release(pool.allocate(1) or ())
    assert Sequence(pool, [1, 2, 3, 4]).num_found == 2, "3, 4 were used before the others"
    pool = BlockPool(4, block_size=2)
    Sequence(pool, [1, 2, 3, 4]).release()
    Sequence(pool, [5, 6, 7, 8]).release()
    pool.touch(pool.match(names([1, 2, 3, 4]), np.array([1, 2, 3, 4], np.int32)).block_ids[0])
    held = pool.allocate(3)
    assert Sequence(pool, [1, 2]).num_found == 2, "it was touched"
    assert held is not None


def test_nothing_is_found_after_it_was_forgotten_or_without_caching():
    pool = BlockPool(4, block_size=2)
    held = Sequence(pool, [1, 2, 3, 4])
    Sequence(pool, [5, 6]).release()
    pool.forget_cached()
    pool.check()
    assert pool.num_cached == 0 and pool.num_free() == 2
    assert Sequence(pool, [1, 2]).num_found == 0
    held.release()
    pool = BlockPool(4, block_size=2, prefix_caching=False)
    Sequence(pool, [1, 2, 3]).release()
    assert Sequence(pool, [1, 2, 3]).num_found == 0 and pool.num_cached == 0


class PoolMachine(RuleBasedStateMachine):
    """Random sequences that come and go, against a set of what each of them holds."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, block_size=2)
        self.sequences: list[Sequence] = []
        self.others: set[int] = set()

    @rule(target=held, count=st.integers(0, 8))
    def allocate(self, count):
        num_free = self.pool.num_free()
        blocks = self.pool.allocate(count)
        if blocks is None:
            assert count > num_free
            return []
        assert len(blocks) == count and self.others.isdisjoint(blocks)
        self.others.update(blocks)
        return blocks

    @rule(blocks=consumes(held))
    def release(self, blocks):
        self.pool.release(blocks)
        self.others.difference_update(blocks)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=7))
    def start(self, tokens):
        sequence = Sequence(self.pool, tokens)
        if sequence.fits:
            self.sequences.append(sequence)

    @rule(data=st.data())
    def end(self, data):
        if self.sequences:
            index = data.draw(st.integers(0, len(self.sequences) - 1))
            self.sequences.pop(index).release()

    @rule(block=st.integers(0, 6))
    def touch(self, block):
        if self.pool.num_holders(block):
            self.pool.touch(block)

    @invariant()
    def books_balance(self):
        self.pool.check()
        held = [block for sequence in self.sequences for block in sequence.blocks]
        held += self.others
        for block in range(7):
            assert self.pool.num_holders(block) == held.count(block)
        assert self.pool.num_free() == 7 - len(set(held))


TestPoolMachine = PoolMachine.TestCase
