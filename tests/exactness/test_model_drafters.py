# SPDX-License-Identifier: Apache-2.0
"""Drafting models change no token, and draft the same whatever happens to a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fdspec.core import (
    Draft,
    DraftContext,
    ModelOutput,
    SamplingParams,
    SequenceId,
    StepPlan,
    Verdict,
)
from fdspec.core.drafting import DraftModel
from fdspec.core.protocols import Proposer
from fdspec.engine.engine import Engine
from fdspec.models import ModelOptions, load_model
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.models.draft_head import DraftHead
from fdspec.models.eagle_loading import load_eagle3
from fdspec.models.mtp import MTPHead
from fdspec.models.mtp_loading import load_mtp_folder
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.hybrid import HybridProposer
from fdspec.spec_decode.model_proposer import ModelProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.step_costs import StepCosts
from fdspec.worker.draft_runner import DraftRunner, draft_model_layers
from fdspec.worker.head_runner import HeadRunner, draft_head_layers
from tests.exactness.mtp_reference import check_against_definition, write_head
from tests.exactness.worlds import MAX_MODEL_LEN, World, tiny_world
from tests.fakes.exactness import Setting, compare, run, sampling_cases
from tests.models.oracle import make_tiny
from tests.models.test_eagle import write_head as write_eagle

GREEDY = SamplingParams(max_tokens=40, temperature=0.0, seed=0, ignore_eos=True)


class Recording:
    """Passes drafts on, and asserts that behind the same tokens the same is drafted."""

    def __init__(
        self, inner: Proposer, known: dict[tuple[int, ...], list[int]], draft_every: int = 1
    ) -> None:
        self.inner = inner
        self.known = known
        self.draft_every = draft_every
        self.num_steps = 0
        self.num_repeated = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        self.num_steps += 1
        drafts = self.inner.propose(contexts if self.num_steps % self.draft_every == 0 else [])
        by_id = {context.sequence_id: context for context in contexts}
        for draft in drafts:
            context = by_id[draft.sequence_id]
            assert 0 < len(draft) <= context.max_draft and draft.is_chain
            tokens, drafted = tuple(context.tokens.tolist()), draft.tokens.tolist()
            known = self.known.setdefault(tokens, drafted)
            self.num_repeated += known is not drafted
            length = min(len(known), len(drafted))
            assert known[:length] == drafted[:length]
            if len(drafted) > length:
                self.known[tokens] = drafted
        return drafts

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        self.inner.observe(plan, output, verdicts)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        self.inner.forget(sequence_ids)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target, and a drafter with the same vocabulary."""
    pair = [tmp_path_factory.mktemp(name) for name in ("target", "drafter")]
    make_tiny("llama", pair[0])
    make_tiny("qwen3", pair[1], num_hidden_layers=2, vocab_size=336)
    return pair


@pytest.fixture(scope="module")
def world(folders):
    params = sampling_cases(max_tokens=40, stop_ids=(7, 31), stop=("abc", "zz"), ids=range(20, 32))
    return tiny_world(folders[0], params, quantization="none")


@pytest.fixture(scope="module")
def drafter(folders):
    return load_model(folders[1], ModelOptions(quantization="wint8", max_model_len=MAX_MODEL_LEN))


@pytest.fixture(scope="module")
def head(world, tmp_path_factory):
    """A random head of the target, that drafts some of its tokens."""
    folder = tmp_path_factory.mktemp("head")
    write_head(folder, world.model.config, np.arange(0, 320, 3, dtype=np.int32))
    return load_mtp_folder(folder, world.model, "none")


@pytest.fixture(scope="module")
def eagle3(world, tmp_path_factory):
    """Another random head, which reads three states of the target."""
    folder = tmp_path_factory.mktemp("eagle3")
    write_eagle(folder, "eagle3")
    return load_eagle3(folder, world.model, "wint8")


@pytest.fixture(params=["drafter", "head", "eagle3"])
def any_drafter(request):
    return request.getfixturevalue(request.param)


def drafting_engine(
    world: World,
    drafter: LlamaFamilyModel | DraftHead,
    setting: Setting,
    wrap: Callable[[ModelProposer], Proposer],
    *,
    length: int,
) -> Engine:
    """An engine whose drafts come from a model or a head, with some proposer around it."""
    dtype, num_scratch = world.kv_cache_dtype, setting.max_num_seqs
    model: DraftModel
    if isinstance(drafter, LlamaFamilyModel):
        layers = draft_model_layers(drafter, dtype=dtype, num_scratch_blocks=num_scratch)
        runner = world.make_runner(setting, [layers])
        model = DraftRunner(drafter, runner.cache, 0)
    else:
        groups = draft_head_layers(drafter, dtype=dtype, num_scratch_blocks=num_scratch)
        runner = world.make_runner(setting, groups)
        model = HeadRunner(drafter, runner.cache, 0)
    proposer = wrap(ModelProposer(model, length, source="model"))
    return world.engine_on(runner, proposer, setting)


# One chunk; then chunks, preemptions, prefix hits and swaps.
SETTINGS = {
    "alone": Setting(max_num_seqs=1, max_num_batched_tokens=256, num_blocks=20),
    "tight": Setting(max_num_seqs=7, max_num_batched_tokens=64, num_blocks=9),
    "swapping": Setting(7, 16, 9, prefix_caching=False, num_swap_slots=40),
    "roomy": Setting(max_num_seqs=16, max_num_batched_tokens=64, num_blocks=200),
}


def test_drafts_and_tokens_are_the_same_whatever_happens(world, any_drafter):
    known: dict[tuple[int, ...], list[int]] = {}
    num_repeated = 0
    for index, (name, setting) in enumerate(SETTINGS.items()):
        recordings: list[Recording] = []
        draft_every = 7 if name == "roomy" else 1  # With steps in which nobody drafts.

        def wrap(
            inner: ModelProposer,
            kept: list[Recording] = recordings,
            draft_every: int = draft_every,
        ) -> Proposer:
            kept.append(Recording(inner, known, draft_every))
            return kept[0]

        engine = drafting_engine(world, any_drafter, setting, wrap, length=4 - index)
        compare(world.expected, run(engine, world.submits, arrivals_per_step=3))
        num_repeated += recordings[0].num_repeated
        stats = engine.monitor.stats()
        assert (stats.num_preempted_total > 0) == (name in ("tight", "swapping"))
        assert (stats.num_swapped_total > 0) == (name == "swapping")
    assert num_repeated > 300
    if isinstance(any_drafter, MTPHead):
        check_against_definition(world.model, any_drafter, known)


def test_the_target_itself_is_always_right(world):
    submits = [replace(submit, params=GREEDY) for submit in world.submits[:6]]
    for name in ("roomy", "tight"):
        engine = drafting_engine(world, world.model, SETTINGS[name], lambda own: own, length=4)
        for result in run(engine, submits, arrivals_per_step=3).values():
            assert result.num_drafted == result.num_accepted >= 25


def test_steps_without_drafts_and_rows_of_other_methods(world, drafter):
    """Now adaptive, now silent, some requests with other methods and some without drafts."""
    submits = [
        replace(
            submit,
            params=replace(submit.params, draft_method=(None, "ngram", "model")[index % 3]),
        )
        for index, submit in enumerate(world.submits)
    ]

    def wrap(inner: ModelProposer) -> Proposer:
        members: dict[str, Proposer] = {
            "model": inner,
            "ngram": NgramProposer(3, min_ngram_size=1),
        }
        return AdaptiveProposer(HybridProposer(members), StepCosts(0.1, 0.01, 0.01))

    engine = drafting_engine(world, drafter, SETTINGS["tight"], wrap, length=3)
    results = run(engine, submits, arrivals_per_step=3)
    compare(world.expected, results)
    sources = {draft.source for result in results.values() for draft in result.drafts}
    assert {"model", "ngram"} <= sources
