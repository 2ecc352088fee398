# SPDX-License-Identifier: Apache-2.0
"""No drafter, batch, chunking or preemption changes a token, on a model without weights."""

import pytest

from tests.fakes.build import EOS_ID, VOCAB_SIZE, make_fake_engine, make_submits
from tests.fakes.drafters import all_drafters
from tests.fakes.exactness import Setting, compare, reference, run, sampling_cases

ROOMY = Setting(max_num_seqs=8, max_num_batched_tokens=4096, num_blocks=400)
SUBMITS = make_submits(
    sampling_cases(max_tokens=24, stop_ids=(7,), stop=("ab", "yy"), ids=(2, 9, 11, 13, 20, 31))
)


@pytest.fixture(scope="module", params=[0.0, 30.0], ids=["chaotic", "looping"])
def world(request):
    """Plain decoding's results, and what it would have said after each stop."""

    def make_engine(proposer, setting, **options):
        return make_fake_engine(proposer, setting, habit=request.param, **options)

    expected = reference(make_engine, SUBMITS, ROOMY)
    endless = reference(make_engine, SUBMITS, ROOMY, endless=True)
    return make_engine, expected, {key: result.tokens for key, result in endless.items()}


def test_plain(world):
    _, expected, _ = world
    print({k: (len(v.tokens), v.finish, v.stop_reason) for k, v in expected.items()})


@pytest.mark.parametrize("name", sorted(all_drafters({}, VOCAB_SIZE, eos_id=EOS_ID, length=1)))
def test_all(world, name):
    make_engine, expected, oracle = world
    total = 0
    for length in (1, 3, 8):
        drafter = all_drafters(oracle, VOCAB_SIZE, eos_id=EOS_ID, length=length)[name]
        for seqs in (1, 7, 16):
            for chunk in (16, 64, 4096):
                for blocks in (23, 400):
                    engine = make_engine(drafter, Setting(seqs, chunk, blocks))
                    got = run(engine, SUBMITS, arrivals_per_step=3)
                    total += compare(expected, got)
    print(name, total)
