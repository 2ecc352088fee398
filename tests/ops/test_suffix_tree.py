# SPDX-License-Identifier: Apache-2.0
"""SuffixTree: drafts and books after any order of growing, ending and leaving."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fdspec.ops import SuffixTree
from fdspec.ops.suffix_tree import MAX_BRANCHES, ReferenceSuffixTree, TreeDraft


def tree_of(*texts: list[int], depth: int = 8) -> SuffixTree:
    """The last text grows, the others are finished."""
    tree = SuffixTree(max_depth=depth)
    for number, text in enumerate(texts):
        assert tree.add_text() == number
        assert tree.follow(number, np.array(text, np.int32))
        if number < len(texts) - 1:
            tree.finish(number)
    tree.check()
    return tree


def chain(tree: SuffixTree, text: int, limit: int, factor: float = 9.0) -> list[int]:
    found = tree.draft_chain(text, limit, factor=factor, min_probability=0.1)
    return list(found.tokens.tolist())


def test_chain_by_hand() -> None:
    tree = tree_of([1, 2, 3, 4, 5], [9, 1, 2])
    assert chain(tree, 1, 3) == [3, 4, 5]
    assert chain(tree, 1, 3, factor=1.0) == [3, 4], "a match of two tokens drafts two"
    draft = tree.draft_chain(1, 3, factor=9.0, min_probability=0.1)
    assert (draft.score, draft.match_length) == (3.0, 2)
    assert draft.parents.tolist() == [-1, 0, 1]


def test_the_most_frequent_continuation_wins_then_the_lower_id() -> None:
    assert chain(tree_of([5, 7], [5, 8], [5, 8], [5]), 3, 1) == [8]
    assert chain(tree_of([5, 9], [5, 8], [5]), 2, 1) == [8]


def test_an_improbable_path_ends() -> None:
    texts = [[5, 6, last] for last in range(10, 30)]
    assert chain(tree_of(*texts, [5]), 20, 4) == [6]


def test_a_surer_longer_match_wins() -> None:
    tree = tree_of([1, 2, 3, 7, 7], [9, 3, 8, 8], [6, 3, 8, 8], [1, 2, 3])
    assert chain(tree, 3, 2) == [7, 7]


def test_tree_by_hand() -> None:
    tree = tree_of([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [0, 1, 2])
    draft = tree.draft_tree(3, 5, min_probability=0.05)
    assert draft.tokens.tolist() == [3, 6, 4, 5]
    assert draft.parents.tolist() == [-1, -1, 0, 0]
    assert draft.match_length == 2
    # Two thirds go on with 3, and half of these with 4. A path of one token after a match of two is
    # believed with 2/3, one of two tokens with 2/4.
    assert draft.score == pytest.approx(2 / 3 * (2 / 3 + 1 / 3) + 2 / 4 * (1 / 3 + 1 / 3))


def test_a_long_match_leaves_room_for_the_draft() -> None:
    text = list(range(40))
    tree = tree_of(text, text[:20], depth=8)
    for limit in (1, 3, 7, 20):
        draft = tree.draft_tree(1, limit, min_probability=0.1)
        assert draft.tokens.tolist() == text[20 : 20 + min(limit, 7)]


def test_branches_with_a_common_beginning_are_merged() -> None:
    tree = tree_of([1, 2, 3, 4], [1, 2, 3, 5], [1])
    draft = tree.draft_tree(2, 5, min_probability=0.01)
    edges = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    assert len(edges) == len(set(edges)) == 4


def test_the_prompt_may_count_more() -> None:
    for weight, expected in ((1, 8), (3, 7)):
        tree = SuffixTree(max_depth=4, prompt_weight=weight)
        for tokens, num_prompt in (([5, 7], 2), ([5, 8], 0), ([5, 8], 0), ([5], 0)):
            text = tree.add_text(num_prompt)
            tree.follow(text, np.array(tokens, np.int32))
        assert chain(tree, text, 1) == [expected]


def test_broad_nodes_give_their_most_frequent_child_only() -> None:
    texts = [[5, token] for token in range(100, 101 + MAX_BRANCHES)]
    tree = tree_of(*texts, [5, 120], [5])
    draft = tree.draft_tree(len(texts) + 1, 10, min_probability=0.0)
    assert draft.tokens.tolist() == [120]


def same(actual: TreeDraft, expected: TreeDraft) -> None:
    assert actual.tokens.tolist() == expected.tokens.tolist()
    assert actual.parents.tolist() == expected.parents.tolist()
    assert actual.score == pytest.approx(expected.score)
    assert actual.match_length == expected.match_length


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_definition_while_texts_grow_and_leave(seed: int) -> None:
    source = random.Random(seed)
    depth, weight = source.randrange(1, 8), source.randrange(1, 4)
    tree = SuffixTree(max_depth=depth, prompt_weight=weight)
    reference = ReferenceSuffixTree(max_depth=depth, prompt_weight=weight)
    vocabulary = source.randrange(1, 5)
    growing: dict[int, tuple[list[int], int]] = {}
    leaving: dict[int, tuple[list[int], int, int]] = {}
    for _ in range(40):
        action = source.random()
        if action < 0.15 or not growing:
            num_prompt = source.randrange(6)
            growing[tree.add_text(num_prompt)] = ([], num_prompt)
        elif action < 0.75:
            text = source.choice(list(growing))
            tokens, num_prompt = growing[text]
            tokens += [source.randrange(vocabulary) for _ in range(source.randrange(1, 7))]
            assert tree.follow(text, np.array(tokens, np.int32))
            assert tree.length(text) == len(tokens)
            reference.set_text(text, tokens, num_prompt)
        elif action < 0.85:
            text = source.choice(list(growing))
            tree.finish(text)
            leaving[text] = (*growing.pop(text), 0)
        elif leaving:
            text = source.choice(list(leaving))
            tokens, num_prompt, num_removed = leaving.pop(text)
            count = source.randrange(1, 6)
            if tree.remove(text, count):
                assert num_removed + count >= len(tokens)
                if tokens:
                    reference.drop_text(text)
            else:
                leaving[text] = (tokens, num_prompt, num_removed + count)
                reference.set_text(text, tokens, num_prompt, num_removed + count)
        tree.check()
        for text, (tokens, _) in growing.items():
            if tokens:
                limit = source.randrange(6)
                factor, least = source.choice((0.5, 1.0, 4.0)), source.choice((0.02, 0.1, 0.4))
                same(
                    tree.draft_chain(text, limit, factor=factor, min_probability=least),
                    reference.draft_chain(text, limit, factor=factor, min_probability=least),
                )
                same(
                    tree.draft_tree(text, limit, min_probability=least),
                    reference.draft_tree(text, limit, min_probability=least),
                )


def test_nothing_is_left_when_every_text_has_left() -> None:
    source = np.random.default_rng(0)
    tree = SuffixTree(max_depth=24)
    for _ in range(20):
        text = tree.add_text()
        tree.follow(text, source.integers(0, 30, 300).astype(np.int32))
        tree.finish(text)
    assert tree.num_bytes > 100_000
    for number in range(20):
        while not tree.remove(number, 100):
            pass
    tree.check()
    assert tree.num_nodes == 1
    assert tree.num_bytes < 200
    with pytest.raises(ValueError, match="^text: 3 is not in the tree"):
        tree.length(3)


def test_at_most_two_nodes_for_each_token() -> None:
    source = np.random.default_rng(0)
    words = source.integers(0, 1000, 200)
    text = np.concatenate([words[source.integers(0, 180) :][:20] for _ in range(100)])
    tree = SuffixTree(max_depth=64)
    tree.follow(tree.add_text(), text.astype(np.int32))
    assert tree.num_nodes <= 2 * len(text)


def test_another_text_is_not_followed() -> None:
    tree = tree_of([1, 2, 3])
    for other in ([1, 2], [1, 2, 4, 5]):
        assert not tree.follow(0, np.array(other, np.int32))
    assert tree.tokens(0).tolist() == [1, 2, 3]
    tree.check()


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="^max_depth"):
        SuffixTree(max_depth=0)
    with pytest.raises(ValueError, match="^prompt_weight"):
        SuffixTree(max_depth=3, prompt_weight=0)
    tree = tree_of([1, 2, 3])
    with pytest.raises(ValueError, match="^text: is still growing"):
        tree.remove(0, 1)
    tree.finish(0)
    with pytest.raises(ValueError, match="^text: has been finished"):
        tree.follow(0, np.array([1, 2, 3, 4], np.int32))
    with pytest.raises(TypeError, match="^tokens"):
        tree.follow(tree.add_text(), np.array([1.0]))
