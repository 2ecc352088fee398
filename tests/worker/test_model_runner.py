# SPDX-License-Identifier: Apache-2.0
"""The runner on a tiny model: the same bits however rows are divided into steps and batches."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec import ops
from fdspec.core.draft import Draft
from fdspec.core.plan import SequencePlan, StepPlan, Verdict
from fdspec.core.sampling_params import SamplingParams
from tests.models import oracle
from tests.models.stepping import blocks_of, execute, make_runner, share

# (weights, cache): the widest range of kernels.
NUMERICS = [
    ("none", "float32"),
    (None, "bfloat16"),
    ("wint8", "bfloat16"),
    ("wint4_g32", "float32"),
    ("wint4_g32", "int8"),
]


@pytest.fixture(scope="module", params=NUMERICS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def runner(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    oracle.make_tiny("qwen3", folder)
    runner = make_runner(folder, *request.param)
    yield runner
    runner.close()


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, count).tolist()


def whole(runner, tokens: list[int]) -> np.ndarray:
    return execute(runner, share(3, tokens, 0, len(tokens)))[0]


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_chunked_prefill_gives_the_same_bits(runner, chunk):
    tokens = tokens_of(1, 83)
    pieces = []
    for start in range(0, len(tokens), chunk):
        end = min(start + chunk, len(tokens))
        pieces += execute(runner, share(0, tokens, start, end))
    np.testing.assert_array_equal(np.concatenate(pieces), whole(runner, tokens))


def test_mixed_batch_gives_the_same_bits_as_one_by_one(runner):
    first, second, third = tokens_of(1, 83), tokens_of(2, 40), tokens_of(3, 21)
    execute(runner, share(0, first, 0, 70), share(1, second, 0, 39))
    mixed = execute(
        runner,
        share(0, first, 70, 83),
        share(1, second, 39, 40),
        share(2, third, 0, 21),
    )
    expected = [whole(runner, first)[70:], whole(runner, second)[39:], whole(runner, third)]
    for result, single in zip(mixed, expected, strict=True):
        np.testing.assert_array_equal(result, single)


def test_draft_rows_give_the_bits_of_plain_decoding(runner):
    tokens = tokens_of(4, 60)
    execute(runner, share(0, tokens, 0, 49))
    draft = Draft.chain(("0", 0), tokens[50:], "test")
    (result,) = execute(runner, share(0, tokens, 49, 50, draft=draft))
    np.testing.assert_array_equal(result, whole(runner, tokens)[49:])


def test_a_rejected_draft_leaves_no_trace(runner):
    tokens = tokens_of(5, 40)
    execute(runner, share(0, tokens, 0, 30))
    wrong = Draft.chain(("0", 0), tokens_of(6, 9), "test")
    execute(runner, share(0, tokens, 30, 31, draft=wrong))
    (result,) = execute(runner, share(0, tokens, 31, 40))
    np.testing.assert_array_equal(result, whole(runner, tokens)[31:])


def test_accepted_tree_rows_continue_as_if_they_were_decoded(runner):
    tokens = tokens_of(7, 48)
    execute(runner, share(0, tokens, 0, 29))
    # Two branches below the last token; the second one is the right text, interleaved.
    other = tokens_of(8, 3)
    draft = Draft(
        ("0", 0),
        np.array([other[0], tokens[30], other[1], tokens[31], other[2], tokens[32]], np.int32),
        np.array([-1, -1, 0, 1, 2, 3], np.int32),
        "tree",
    )
    sequence = share(0, tokens, 29, 30, draft=draft)
    (result,) = execute(runner, sequence)
    expected = whole(runner, tokens)
    np.testing.assert_array_equal(result[[0, 2, 4, 6]], expected[29:33])
    verdict = Verdict(("0", 0), tokens=tuple(tokens[30:34]), kept=(1, 3, 5), num_drafted=6)
    runner.commit(StepPlan(0, (sequence,)), [verdict])
    (rest,) = execute(runner, share(0, tokens, 33, 48))
    np.testing.assert_array_equal(rest, expected[33:])


def test_wild_draft_tokens_do_no_harm(runner):
    tokens = tokens_of(9, 20)
    execute(runner, share(0, tokens, 0, 19))
    wild = Draft.chain(("0", 0), [320, -1, 2**31 - 1, -(2**31)], "wild")
    (result,) = execute(runner, share(0, tokens, 19, 20, draft=wild))
    np.testing.assert_array_equal(result[0], whole(runner, tokens)[19])
    assert np.isfinite(result).all()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_do_not_change_bits(runner, num_threads):
    tokens = tokens_of(10, 70)
    before, expected = ops.num_threads(), whole(runner, tokens)
    ops.set_num_threads(num_threads)
    try:
        np.testing.assert_array_equal(whole(runner, tokens), expected)
    finally:
        ops.set_num_threads(before)


def test_instruction_sets_do_not_change_bits(runner):
    tokens = tokens_of(13, 45)
    before, expected = ops.isa(), whole(runner, tokens)
    try:
        for isa in ops.supported_isas():
            ops.set_isa(isa)
            np.testing.assert_array_equal(whole(runner, tokens), expected, err_msg=isa)
    finally:
        ops.set_isa(before)


def test_only_wanted_rows_have_logits(runner):
    tokens = tokens_of(11, 12)

    def plan(samples: bool) -> SequencePlan:
        return SequencePlan(
            sequence_id=("0", 0),
            start=0,
            history=np.array(tokens, dtype=np.int32),
            num_prompt=len(tokens),
            draft=None,
            block_ids=blocks_of(0, len(tokens)),
            params=SamplingParams(),
            samples=samples,
        )

    assert execute(runner, plan(samples=False))[0].shape == (0, 320)
    (last,) = execute(runner, plan(samples=True))
    np.testing.assert_array_equal(last, whole(runner, tokens)[-1:])
    output = runner.execute(StepPlan(0, ()))
    assert output.logits.shape == (0, 320)
    assert output.row_splits.tolist() == [0]


def test_paddle_tensors_take_the_same_path(tmp_path):
    """The model called with Paddle tensors gives the bits that the runner's numpy arrays give."""
    import paddle

    from fdspec.layers.attention import AttentionMetadata
    from fdspec.worker.batch import build_batch

    oracle.make_tiny("qwen3", tmp_path)
    runner = make_runner(tmp_path)
    tokens = tokens_of(12, 30)
    (expected,) = execute(runner, share(0, tokens, 0, 30))
    model = runner.model
    batch = build_batch(StepPlan(0, (share(0, tokens, 0, 30),)), block_size=16, vocab_size=320)
    caches = [
        [paddle.Tensor(array, zero_copy=True) for array in layer] for layer in runner.cache.layers
    ]
    metadata = AttentionMetadata(
        batch.slots, batch.block_table, batch.row_splits, batch.context_lens, batch.parents
    )
    hidden = model(
        paddle.to_tensor(batch.token_ids), paddle.to_tensor(batch.positions), metadata, caches
    )
    logits = model.compute_logits(hidden)
    assert isinstance(logits, paddle.Tensor)
    np.testing.assert_array_equal(logits.numpy(), expected)
