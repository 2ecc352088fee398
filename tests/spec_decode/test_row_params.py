# SPDX-License-Identifier: Apache-2.0
"""Every row gets the parameters that plain decoding would use after the same tokens."""

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from fdspec.core import SamplingParams
from fdspec.ops import RowParams
from fdspec.spec_decode.row_params import RowParamsBuilder
from fdspec.spec_decode.token_counts import TokenCounts
from tests.spec_decode.plans import GREEDY, decoding

EOS = 0
VOCAB = 40
PENALTIES = SamplingParams(
    max_tokens=50,
    seed=5,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    logit_bias=((3, 1.5), (4, -2.0)),
    bad_words_token_ids=((7,), (8, 9), (1, 5, 6)),
    min_tokens=4,
    stop_token_ids=(11,),
)


def builder(**options):
    return RowParamsBuilder([EOS], VOCAB, **{"always_greedy": False, **options})


def row_as_dict(params: RowParams, index: int):
    """A row with its sparse parts in an order of their own."""
    row = params.row(index)
    counts = {
        token: (count, flag)
        for token, count, flag in zip(
            row.count_ids.tolist(), row.output_counts.tolist(), row.in_prompt.tolist(), strict=True
        )
    }
    assert len(counts) == len(row.count_ids), "a token twice"
    biases = sorted(zip(row.bias_ids.tolist(), row.bias_values.tolist(), strict=True))
    sparse = {f.name for f in fields(RowParams) if "count" in f.name or "bias" in f.name}
    dense = {
        f.name: getattr(row, f.name).tolist()
        for f in fields(RowParams)
        if f.name not in sparse | {"in_prompt", "mask"}
    }
    return dense, counts, biases


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 1, -1], [-1, -1, -1, 0, 3]])
def test_rows_equal_those_of_plain_decoding(parents):
    prompt, output, draft = (1, 2, 1, 8), (5, 1, 5), (9, 5, 8, 9, 30)
    sequence = decoding(prompt, output, draft=draft, parents=parents, params=PENALTIES)
    rows = builder().build([sequence])
    assert rows.num_rows == 6
    assert sequence.draft is not None
    ancestors = sequence.draft.parents.tolist()
    for row in range(6):
        path: list[int] = []
        node = row - 1
        while node >= 0:
            path.insert(0, draft[node])
            node = ancestors[node]
        plain = builder().build([decoding(prompt, (*output, *path), params=PENALTIES)])
        assert row_as_dict(rows, row) == row_as_dict(plain, 0), f"row {row}, path {path}"


def test_counts_are_those_of_the_history():
    params = builder().build([decoding((1, 2, 1), (5, 1, 5), draft=(5, 9), params=PENALTIES)])
    _, counts, _ = row_as_dict(params, 0)
    assert counts == {1: (1, 1), 2: (0, 1), 5: (2, 0)}
    _, counts, _ = row_as_dict(params, 2)
    assert counts == {1: (1, 1), 2: (0, 1), 5: (3, 0), 9: (1, 0)}


def test_rejected_drafts_leave_no_trace_in_counts():
    """After every step the counts are the histogram of what was emitted."""
    rows = builder()
    prompt, output = (1, 2, 3), [4]
    for step in range(40):
        sequence = decoding(prompt, output, draft=(20, 21, 22, 4), params=PENALTIES)
        _, counts, _ = row_as_dict(rows.build([sequence]), 0)
        histogram = Counter(output)
        assert {t: c for t, (c, _) in counts.items() if c} == dict(histogram)
        assert {t for t, (_, flag) in counts.items() if flag} == set(prompt)
        output += [20, 21, 22, 4][: step % 4] + [step % 30]


def test_counts_are_rebuilt_when_they_are_missing_or_of_another_sequence():
    rows = builder()
    rows.build([decoding((1, 2), (3, 4, 5, 6), params=PENALTIES)])
    _, counts, _ = row_as_dict(rows.build([decoding((1, 2), (3, 4), params=PENALTIES)]), 0)
    assert counts == {1: (0, 1), 2: (0, 1), 3: (1, 0), 4: (1, 0)}
    rows.forget([("r", 0), ("never seen", 0)])
    _, counts, _ = row_as_dict(rows.build([decoding((9,), (8,) * 9, params=PENALTIES)]), 0)
    assert counts == {9: (0, 1), 8: (9, 0)}


def test_token_counts_grow_beyond_their_first_size():
    history = np.arange(100, dtype=np.int32)
    counts = TokenCounts(history[:3], 2)
    counts.update(history)
    entries = counts.with_path([5, 5, 200])
    as_dict = dict(zip(entries.ids.tolist(), entries.output_counts.tolist(), strict=True))
    assert as_dict == {0: 0, 1: 0, **dict.fromkeys(range(2, 100), 1), 5: 3, 200: 1}
    assert entries.in_prompt.tolist() == [1, 1] + [0] * 99
    assert counts.with_path([]).output_counts.sum() == 98, "a path leaves no trace"


def biases(row, params):
    return dict(row_as_dict(params, row)[2])


def test_min_tokens_masks_by_output_index():
    """EOS and stop ids are barred for output indices below min_tokens, on draft rows too."""
    params = SamplingParams(max_tokens=50, seed=1, min_tokens=4, stop_token_ids=(11,))
    rows = builder().build([decoding((1,), (2, 3), draft=(4, 5, 6), params=params)])
    assert [set(biases(row, rows)) for row in range(4)] == [{0, 11}, {0, 11}, set(), set()]
    assert rows.position.tolist() == [2, 3, 4, 5]
    ignoring = replace(params, ignore_eos=True)
    rows = builder().build([decoding((1,), (2, 3), params=ignoring)])
    assert set(biases(0, rows)) == {11}


def test_bad_words_follow_the_draft_path():
    params = SamplingParams(max_tokens=50, seed=1, bad_words_token_ids=((7,), (8, 9), (1, 5, 6)))
    rows = builder().build([decoding((1,), (5, 8), draft=(8, 1, 5), params=params)])
    assert [set(biases(row, rows)) for row in range(4)] == [{7, 9}, {7, 9}, {7}, {7, 6}]
    rows = builder().build([decoding((1,), (5,), params=params)])
    assert set(biases(0, rows)) == {7, 6}, "a word may begin in the prompt"
    rows = builder().build([decoding((8,), (), params=params)])
    assert set(biases(0, rows)) == {7, 9}


def test_keys_of_the_noise():
    params = SamplingParams(max_tokens=50, seed=2**63 - 1, top_k=3, top_p=0.5, min_p=0.1)
    first = decoding((1,), (2,), draft=(3, 4), params=params, key=("a", 0))
    other = decoding((1,), (2, 3, 4), params=replace(params, seed=9), key=("b", 6))
    rows = builder().build([first, other])
    assert rows.seed.tolist() == [2**63 - 1] * 3 + [9]
    assert rows.choice.tolist() == [0, 0, 0, 6]
    assert rows.position.tolist() == [1, 2, 3, 3]
    assert rows.top_k.tolist() == [3] * 4


def test_greedy_rows_take_the_short_way():
    rows = builder()
    plain = rows.build([decoding((1,), (2,), draft=(3, 4)), decoding((1,), ())])
    assert plain.num_rows == 4 and plain.temperature.tolist() == [0.0] * 4
    assert rows.build([decoding((1,), (2,), draft=(3, 4, 5))]) is plain, "nothing is built anew"
    mixed = rows.build([decoding((1,), (2,)), decoding((1,), (2,), params=PENALTIES)])
    assert mixed.temperature.tolist() == [0.0, 1.0]
    masked = rows.build([decoding((1,), (2,), params=replace(GREEDY, min_tokens=5))])
    assert set(biases(0, masked)) == {0}


def test_always_greedy_sets_every_temperature_to_zero():
    rows = builder(always_greedy=True).build([decoding((1,), (2,), params=PENALTIES)])
    assert rows.temperature.tolist() == [0.0]
    assert len(rows.count_ids) == 2


def test_drafts_outside_the_vocabulary_do_not_reach_the_counts():
    rows = builder().build(
        [decoding((1,), (2,), draft=(3, VOCAB, -1), params=replace(PENALTIES, logit_bias=()))]
    )
    assert set(rows.count_ids.tolist()) <= {1, 2, 3}
