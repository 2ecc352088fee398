# SPDX-License-Identifier: Apache-2.0
"""verify_chain and verify_tree: which draft tokens equal the target's own tokens.

Called by the verifier with the tokens that sample_rows chose. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


class Verification(NamedTuple):
    """What is accepted of the drafts of S sequences.

    Attributes:
        accepted: [total accepted] int32, indices into the sequence's own draft, in path order.
        splits: [S + 1] int64; sequence s owns accepted[splits[s]:splits[s + 1]].
        num_accepted: [S] int32.
        next_tokens: [S] int32, the target's token after the last accepted one: the bonus token if
            the whole draft was accepted, else the recovered one.
    """

    accepted: Array
    splits: Array
    num_accepted: Array
    next_tokens: Array


def verify_chain(draft_tokens: Array, targets: Array, draft_splits: Array) -> Verification:
    """Accepts the first tokens of each draft, as long as they equal the target's own.

    Args:
        draft_tokens: [total] int32, drafts of all sequences, one after another. Ids outside the
            vocabulary equal no target.
        targets: [total + sequences] int32, the target's own token at each row: for each sequence
            the one that follows its last committed token, then those that follow its draft tokens.
        draft_splits: [sequences + 1] int64; sequence s owns
            draft_tokens[draft_splits[s]:draft_splits[s + 1]] and may own none.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or the splits are out of order.
    """
    return Verification(*kernels().verify(draft_tokens, None, targets, draft_splits))


def verify_tree(
    draft_tokens: Array, parents: Array, targets: Array, draft_splits: Array
) -> Verification:
    """Walks down each tree by the child that equals the target's own token, as far as there is one.

    Of equal siblings the first is taken.

    Args:
        draft_tokens: see verify_chain.
        parents: [total] int32, index of each token's parent in its sequence's own draft; -1 is the
            last committed token. A parent comes before its children.
        targets: see verify_chain.
        draft_splits: see verify_chain.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or splits or parents are not as described.
    """
    return Verification(*kernels().verify(draft_tokens, parents, targets, draft_splits))


def reference_verify_chain(
    draft_tokens: Array, targets: Array, draft_splits: Array
) -> Verification:
    """verify_chain from its definition."""
    lengths = np.diff(to_numpy(draft_splits)).tolist()
    parents = [index - 1 for length in lengths for index in range(length)]
    tree = from_numpy(np.array(parents, np.int32), draft_tokens)
    return reference_verify_tree(draft_tokens, tree, targets, draft_splits)


def reference_verify_tree(
    draft_tokens: Array, parents: Array, targets: Array, draft_splits: Array
) -> Verification:
    """verify_tree from its definition."""
    tokens, tree = to_numpy(draft_tokens).tolist(), to_numpy(parents).tolist()
    own, bounds = to_numpy(targets).tolist(), to_numpy(draft_splits).tolist()
    paths, next_tokens = [], []
    for sequence, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        rows = own[start + sequence : end + sequence + 1]
        path, node = [], -1
        while True:
            children = [i for i in range(end - start) if tree[start + i] == node]
            matches = [i for i in children if tokens[start + i] == rows[node + 1]]
            if not matches:
                break
            node = matches[0]
            path.append(node)
        paths.append(path)
        next_tokens.append(rows[node + 1])
    lengths = [len(path) for path in paths]
    return Verification(
        from_numpy(np.array(sum(paths, []), np.int32), draft_tokens),
        from_numpy(np.cumsum([0, *lengths]).astype(np.int64), draft_tokens),
        from_numpy(np.array(lengths, np.int32), draft_tokens),
        from_numpy(np.array(next_tokens, np.int32), draft_tokens),
    )
