# SPDX-License-Identifier: Apache-2.0
"""The index finds the longest cached start of a sequence, and nothing that is not there."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fdspec.core.protocols import Match
from fdspec.kv.prefix_index import PrefixIndex, extend_digests, root_digest

SIZE = 4


def names(tokens, salt=""):
    digests = [root_digest(salt)]
    extend_digests(digests, np.array(tokens, np.int32), SIZE)
    return digests


def insert(index, tokens, first_block, salt=""):
    """Cache a sequence in blocks numbered from first_block; returns where its blocks are."""
    digests = names(tokens, salt)
    blocks = []
    for start in range(0, len(tokens), SIZE):
        piece = np.array(tokens[start : start + SIZE], np.int32).tobytes()
        number = start // SIZE
        digest = digests[number + 1] if start + SIZE <= len(tokens) else None
        blocks.append(index.insert(first_block + number, digests[number], piece, digest))
    index.check()
    return blocks


def match(index, tokens, salt=""):
    return index.match(names(tokens, salt), np.array(tokens, np.int32), SIZE)


def test_names_stand_for_everything_before_them():
    assert names(range(8))[1] == names(range(4))[1]
    assert names(range(8))[2] != names([9, *range(1, 8)])[2]
    assert names(range(8), "a")[2] != names(range(8), "b")[2]
    digests = names(range(5))
    extend_digests(digests, np.arange(13, dtype=np.int32), SIZE)
    assert digests == names(range(13)) and len(digests) == 4


def test_full_blocks_then_the_start_of_one():
    index = PrefixIndex()
    assert insert(index, range(10), 20) == [20, 21, 22]
    assert match(index, range(10)) == Match((20, 21), 22, 2)
    assert match(index, range(9)) == Match((20, 21), 22, 1)
    assert match(index, range(8)) == Match((20, 21))
    assert match(index, [*range(6), 50, 51]) == Match((20,), 21, 2)
    assert match(index, [*range(12)]) == Match((20, 21), 22, 2)
    assert match(index, [7, 8]) == Match()
    assert match(index, []) == Match()
    assert match(index, range(10), salt="other") == Match()


def test_equal_tokens_have_one_block_and_longer_ones_replace_their_start():
    index = PrefixIndex()
    insert(index, range(6), 0)
    assert insert(index, range(6), 10) == [0, 1], "both are there"
    assert insert(index, range(7), 20) == [0, 21], "a longer start replaces a shorter one"
    assert 1 not in index and len(index) == 2
    assert insert(index, [0, 1, 2, 3, 4], 30) == [0, 21]
    assert insert(index, range(8), 40) == [0, 41], "and a full block both"
    assert match(index, [*range(8), 9]) == Match((0, 41))
    assert len(index) == 2


def test_removed_blocks_are_not_found():
    index = PrefixIndex()
    insert(index, range(12), 0)
    assert index.has_children(0) and not index.has_children(2)
    index.remove(2)
    index.remove(2)
    assert match(index, range(12)) == Match((0, 1))
    assert not index.has_children(1)
    index.check()


sequences = st.lists(st.lists(st.integers(0, 2), max_size=14), max_size=20)


@given(sequences, st.lists(st.integers(0, 2), max_size=14))
def test_finds_as_much_as_a_search_through_everything(cached, wanted):
    index = PrefixIndex()
    holds: dict[int, tuple[int, ...]] = {}
    for number, tokens in enumerate(cached):
        for start, block in enumerate(insert(index, tokens, 10 * number)):
            if block // 10 == number:
                holds[block] = tuple(tokens[: (start + 1) * SIZE])
    found = match(index, wanted)
    num_found = len(found.block_ids) * SIZE + found.num_partial
    assert num_found == max((num_common(tokens, wanted) for tokens in cached), default=0)
    for number, block in enumerate(found.block_ids):
        assert holds[block] == tuple(wanted[: (number + 1) * SIZE])
    if found.partial_block is not None:
        assert holds[found.partial_block][:num_found] == tuple(wanted[:num_found])


def num_common(one, other):
    length = 0
    while one[: length + 1] == other[: length + 1] and length < min(len(one), len(other)):
        length += 1
    return length
