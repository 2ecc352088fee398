# SPDX-License-Identifier: Apache-2.0
"""The comparison behind the promise: any engine setting gives the tokens of plain decoding.

Shared by the tests on fakes and those on real models; they differ in how an engine is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fdspec.core import (
    DraftStats,
    FinishReason,
    SamplingParams,
    SequenceId,
    SequencePlan,
    Submit,
    TokenEvent,
    TokenLogprob,
)
from fdspec.core.protocols import Proposer
from fdspec.engine.engine import Engine
from fdspec.scheduler.topic import InProcessTopic
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.stop import Trimmed


@dataclass(frozen=True)
class Setting:
    """How an engine is run; nothing here may change a token.

    Attributes:
        max_num_seqs: sequences at once.
        max_num_batched_tokens: rows in a step; small values cut prompts into chunks.
        num_blocks: KV blocks; few of them force preemptions.
        num_swap_slots: blocks of swap space; with any, whatever fits is swapped.
        prefix_caching: share what requests have in common.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    prefix_caching: bool = True
    num_swap_slots: int = 0


@dataclass
class Result:
    """Everything that one choice yielded; `steps` are the tokens of each event."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    drafts: list[DraftStats] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def add(self, event: TokenEvent) -> None:
        """Take the next event of the choice."""
        assert self.finish is None, "an event after the last one"
        assert event.index == len(self.tokens), "events are not contiguous"
        self.tokens += event.tokens
        self.logprobs += event.logprobs or ()
        if event.prompt_logprobs is not None:
            assert self.num_events == 0, "prompt logprobs come with the first event"
            self.prompt_logprobs = event.prompt_logprobs
        if event.draft is not None:
            assert self.num_events > 0, "the first token is not drafted for"
            self.drafts.append(event.draft)
        self.finish = event.finish
        self.stop_reason = event.stop_reason
        self.error = event.error
        self.steps.append(len(event.tokens))

    @property
    def num_events(self) -> int:
        """Events so far; the first one comes with the end of the prompt."""
        return len(self.steps)

    @property
    def num_accepted(self) -> int:
        """Draft tokens accepted in all steps."""
        return sum(draft.num_accepted for draft in self.drafts)

    @property
    def num_drafted(self) -> int:
        """Draft tokens verified in all steps."""
        return sum(draft.num_drafted for draft in self.drafts)


MakeEngine = Callable[[Proposer, Setting], Engine]
Results = dict[SequenceId, Result]


class EndlessWalk:
    """Stands in for the stop walk and ends outputs by length only, to see what would follow."""

    def trim(self, tokens: Sequence[int], sequence: SequencePlan) -> Trimmed:
        left = (sequence.params.max_tokens or 0) - sequence.num_output
        if len(tokens) >= left:
            return Trimmed(left, FinishReason.LENGTH)
        return Trimmed(len(tokens))


def run(engine: Engine, submits: Sequence[Submit], *, arrivals_per_step: int = 1000) -> Results:
    """Feed requests to an engine and step it until all are done; checks the books as it goes.

    Args:
        engine: with an InProcessTopic.
        submits: requests in order of arrival.
        arrivals_per_step: how many of them arrive before each step.
    """
    topic = engine.topic
    assert isinstance(topic, InProcessTopic)
    results: Results = {
        (submit.request_id, choice): _so_far(submit, choice)
        for submit in submits
        for choice in range(submit.params.n)
    }
    queue = list(submits)
    idle_steps = 0
    while queue or engine.scheduler.has_work():
        for submit in queue[:arrivals_per_step]:
            topic.send(submit)
        del queue[:arrivals_per_step]
        events = engine.step()
        for event in events:
            results[event.request_id, event.choice].add(event)
        engine.monitor.check()
        idle_steps = 0 if events else idle_steps + 1
        assert idle_steps < 10_000, "the engine makes no progress"
    topic.receive()
    stats = engine.monitor.stats()
    assert stats.num_free_blocks == stats.num_blocks, "blocks are missing at the end"
    return results


def _so_far(submit: Submit, choice: int) -> Result:
    """What a choice has yielded before it comes to this engine."""
    emitted = submit.emitted[choice] if submit.emitted else ()
    return Result(list(emitted), steps=[len(emitted)]) if emitted else Result()


def reference(
    make_engine: MakeEngine, submits: Sequence[Submit], setting: Setting, *, endless: bool = False
) -> Results:
    """Plain decoding, one sequence at a time, each computed from its start."""
    engine = make_engine(NaiveProposer(), replace(setting, max_num_seqs=1, prefix_caching=False))
    if endless:
        engine.verifier._stop = EndlessWalk()  # type: ignore[attr-defined]
    return run(engine, submits)


def compare(expected: Results, actual: Results, *, logprob_tolerance: float = 0.0) -> int:
    """Assert that two runs gave the same answers; returns the number of compared tokens.

    Tokens, finish and stop reasons must be equal; so must logprobs up to the tolerance. Draft
    counters must account for every token.
    """
    assert expected.keys() == actual.keys()
    num_tokens = 0
    for key, want in expected.items():
        got = actual[key]
        assert got.tokens == want.tokens, f"{key}: tokens differ"
        assert (got.finish, got.stop_reason, got.error) == (
            want.finish,
            want.stop_reason,
            want.error,
        ), key
        _compare_logprobs(want.logprobs, got.logprobs, logprob_tolerance)
        _compare_logprobs(
            list(want.prompt_logprobs or ()), list(got.prompt_logprobs or ()), logprob_tolerance
        )
        for draft in got.drafts:
            assert 0 <= draft.num_accepted <= draft.num_drafted
        if got.tokens:
            # Every step gives the accepted drafts and one token of the target's own.
            assert len(got.tokens) == got.num_events + got.num_accepted, key
        num_tokens += len(got.tokens)
    return num_tokens


def _compare_logprobs(
    expected: Sequence[TokenLogprob | None],
    actual: Sequence[TokenLogprob | None],
    tolerance: float,
) -> None:
    assert len(expected) == len(actual)
    for want, got in zip(expected, actual, strict=True):
        if want is None or got is None:
            assert want is got
            continue
        assert (got.token_id, got.rank) == (want.token_id, want.rank)
        assert [token for token, _ in got.top] == [token for token, _ in want.top]
        pairs = [(want.logprob, got.logprob)]
        pairs += [(w[1], g[1]) for w, g in zip(want.top, got.top, strict=True)]
        for one, other in pairs:
            assert math.isclose(one, other, rel_tol=0.0, abs_tol=tolerance)


def sampling_cases(
    *, max_tokens: int, stop_ids: tuple[int, ...], stop: tuple[str, ...], ids: Sequence[int]
) -> dict[str, SamplingParams]:
    """Greedy, and seeded sampling with every processor and every way to stop.

    Args:
        max_tokens: length of the outputs.
        stop_ids: tokens that occur in outputs now and then.
        stop: strings that do.
        ids: at least six common token ids, for biases and bad words.
    """
    base = SamplingParams(max_tokens=max_tokens, temperature=0.9, seed=1)
    greedy = replace(base, temperature=0.0, seed=0)
    bias = ((ids[0], 2.0), (ids[1], -100.0), (ids[2], 1.5))
    bad_words = ((ids[3],), (ids[4], ids[5]), (ids[0], ids[2], ids[0]))
    everything = replace(
        base,
        seed=11,
        top_k=20,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias=bias,
        bad_words_token_ids=bad_words,
        min_tokens=max_tokens // 2,
        stop_token_ids=stop_ids,
        stop=stop,
        logprobs=3,
        prompt_logprobs=2,
    )
    return {
        "greedy": greedy,
        "greedy-no-eos": replace(greedy, ignore_eos=True, logprobs=2),
        "greedy-penalties": replace(
            greedy, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=1.5
        ),
        "greedy-stops": replace(greedy, stop=stop, stop_token_ids=stop_ids, prompt_logprobs=0),
        "greedy-min-tokens": replace(greedy, min_tokens=max_tokens - 2, stop_token_ids=stop_ids),
        "sampled": replace(base, seed=2, logprobs=1),
        "sampled-n": replace(base, seed=3, n=3),
        "top-k": replace(base, seed=4, top_k=5),
        "top-p": replace(base, seed=5, top_p=0.7, temperature=1.3),
        "min-p": replace(base, seed=6, min_p=0.2),
        "penalties": replace(
            base, seed=7, repetition_penalty=0.8, presence_penalty=-0.7, frequency_penalty=0.9
        ),
        "bias": replace(base, seed=8, logit_bias=bias, bad_words_token_ids=bad_words),
        "sampled-stops": replace(base, seed=9, stop=stop, stop_token_ids=stop_ids, logprobs=0),
        "sampled-min-tokens": replace(base, seed=10, min_tokens=5, stop=stop, ignore_eos=True),
        "everything": everything,
        "one-token": replace(base, max_tokens=1, logprobs=1),
        "no-drafts": replace(base, seed=12, max_draft_tokens=0),
        "two-drafts": replace(base, seed=13, max_draft_tokens=2),
    }
