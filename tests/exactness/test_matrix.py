# SPDX-License-Identifier: Apache-2.0
"""Each method, and all of them mixed in one batch, under every two circumstances at once.

The full suite compares more than 400,000 tokens: 28 cells (7 methods, 4 architectures) of more than
MIN_TOKENS each.
"""

import itertools

import pytest

from tests.exactness.matrix import CIRCUMSTANCES, METHODS, Tally, all_pairs, check
from tests.exactness.worlds import TINY

MIN_TOKENS = 15_000
ROWS = all_pairs(CIRCUMSTANCES)


def check_row(worlds, model, method, row, tally):
    kv_cache = row["kv_cache"]
    name = model if kv_cache == "float32" else f"{model}-{kv_cache}"
    check(worlds(name), method, row, tally)


def test_every_two_circumstances_meet():
    pairs = {
        ((one, row[one]), (other, row[other]))
        for row in ROWS
        for one, other in itertools.combinations(CIRCUMSTANCES, 2)
    }
    wanted = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(CIRCUMSTANCES, 2)
        for a, b in itertools.product(CIRCUMSTANCES[one], CIRCUMSTANCES[other])
    }
    assert wanted <= pairs and len(ROWS) <= 14


@pytest.mark.parametrize("method", ["lookahead", "mixed"])
def test_a_sample(worlds, method):
    """A tight pool, chunks and several sequences."""
    index = METHODS.index(method)
    rows = [row for row in ROWS if row["blocks"] == 9 and row["sequences_at_once"] > 1]
    row = rows[index % len(rows)]
    tally = Tally()
    check_row(worlds, "llama", method, row, tally)
    assert tally.num_tokens > 500 and tally.num_preempted > 0


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("method", METHODS)
def test_all(worlds, method, model):
    tally = Tally()
    for row in ROWS:
        check_row(worlds, model, method, row, tally)
    print(f"{method}, {model}: {tally}")
    assert tally.num_tokens >= MIN_TOKENS
    assert min(tally.num_accepted, tally.num_preempted, tally.num_swapped) > 0
    assert tally.num_prefix_hits > 0
