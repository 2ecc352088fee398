# SPDX-License-Identifier: Apache-2.0
"""The step calls its stages in order; the loop ends when told to, and tells when it fails."""

import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from fdspec.core import Abort, ClearCache, FinishReason, SamplingParams, Submit
from fdspec.core.protocols import Proposer
from fdspec.scheduler.topic import Cleared, EngineStats, Fatal, InProcessTopic
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from tests.fakes.build import VOCAB_SIZE, make_fake_engine
from tests.fakes.exactness import Setting, run

ROOMY = Setting(max_num_seqs=8, max_num_batched_tokens=256, num_blocks=200)
PARAMS = SamplingParams(max_tokens=6, temperature=0.0, seed=0)


def engine_of(proposer: Proposer, setting: Setting, **options: Any) -> Any:
    """An engine whose parts the tests may look into."""
    return make_fake_engine(proposer, setting, **options)


class Recorder:
    """Notes the calls of every stage's methods."""

    def __init__(self, calls, name, inner):
        self.calls, self.name, self.inner = calls, name, inner

    def __getattr__(self, method):
        attribute = getattr(self.inner, method)
        if not callable(attribute):
            return attribute

        def call(*args):
            self.calls.append(method)
            return attribute(*args)

        return call


def test_stages_come_in_order():
    engine = engine_of(NgramProposer(3), ROOMY)
    engine.topic.send(Submit("a", (3, 4, 5), PARAMS))
    calls: list[str] = []
    for part in ("topic", "scheduler", "proposer", "runner", "verifier", "handoff"):
        setattr(engine, part, Recorder(calls, part, getattr(engine, part)))
    engine.step()
    assert calls == [
        *("has_work", "poll", "hold", "add", "news", "settle", "draft_contexts", "propose", "plan"),
        *("begin", "execute", "verify", "commit", "observe", "apply", "learn"),
        *("take_departures", "end", "forget", "forget", "forget", "emit"),
    ]
    calls.clear()
    engine.scheduler.inner.add(Abort("a"))
    engine.step()
    assert "execute" not in calls and "emit" in calls, "nothing is computed without work"


def test_refusals_and_aborts_reach_the_client():
    engine = engine_of(NaiveProposer(), ROOMY)
    engine.topic.send(Submit("too long", (3,) * 500, PARAMS))
    engine.topic.send(Submit("fine", (3, 4), PARAMS))
    events = engine.step()
    assert [(e.request_id, e.finish) for e in events] == [
        ("too long", FinishReason.ERROR),
        ("fine", None),
    ]
    engine.topic.send(Abort("fine"))
    engine.step()
    messages = engine.topic.receive()
    assert [(e.request_id, e.index, e.finish) for e in messages[-1]] == [
        ("fine", 1, FinishReason.ABORT)
    ]


def test_a_bad_request_does_not_touch_its_neighbours():
    alone = run(engine_of(NaiveProposer(), ROOMY), [Submit("a", (3, 4, 5), PARAMS)])
    both = run(
        engine_of(NaiveProposer(), ROOMY),
        [Submit("bad", (VOCAB_SIZE,), PARAMS), Submit("a", (3, 4, 5), PARAMS)],
    )
    assert both["bad", 0].error is not None and both["bad", 0].tokens == []
    assert both["a", 0].tokens == alone["a", 0].tokens


def test_random_aborts_return_every_block():
    source = random.Random(5)
    proposer = AdaptiveProposer(NgramProposer(4, min_ngram_size=1))
    engine = engine_of(proposer, Setting(4, 24, 40), habit=30.0)
    pending = [
        Submit(
            f"{i}",
            tuple(source.randrange(2, VOCAB_SIZE) for _ in range(source.randrange(1, 60))),
            SamplingParams(
                max_tokens=source.randrange(1, 40),
                seed=i,
                n=source.choice([1, 1, 2]),
                repetition_penalty=source.choice([1.0, 1.2]),
                prompt_logprobs=source.choice([None, None, 1]),
            ),
        )
        for i in range(200)
    ]
    open_ids: set[str] = set()
    num_finished = 0
    while pending or engine.scheduler.has_work():
        while pending and len(open_ids) < 16:
            submit = pending.pop()
            open_ids.add(submit.request_id)
            engine.topic.send(submit)
        if open_ids and source.random() < 0.1:
            engine.topic.send(Abort(source.choice(sorted(open_ids))))
        for event in engine.step():
            assert event.finish is not FinishReason.ERROR
            num_finished += event.finish is not None
        live = {r.sequence_id[0] for r in engine.scheduler._residents._requests.values()}
        open_ids &= live | {c.request_id for c in engine.topic._commands}
        engine.monitor.check()
    stats = engine.monitor.stats()
    assert stats.num_free_blocks == stats.num_blocks == 40
    assert num_finished >= 200
    assert not proposer._states, "state of ended sequences is dropped"
    assert not engine.verifier._rows._counts


def test_stats_add_up():
    engine = engine_of(NgramProposer(4, min_ngram_size=1), ROOMY, habit=100.0)
    results = run(engine, [Submit("a", (3, 4, 5), replace(PARAMS, max_tokens=60))])
    stats = engine.monitor.stats()
    result = results["a", 0]
    assert result.num_accepted > 0, "the fake model repeats itself"
    assert stats.num_draft_tokens_total == result.num_drafted
    assert stats.num_accepted_tokens_total == result.num_accepted
    assert stats.num_drafts_total == len(result.drafts)
    assert stats.num_steps_total == engine.runner.num_steps == result.num_events
    assert (
        stats.num_rows_total
        == engine.runner.num_rows
        == 2 + result.num_events + (result.num_drafted)
    )


def test_run_publishes_stats_and_stops_when_told():
    engine = engine_of(NaiveProposer(), ROOMY)
    engine.topic.send(Submit("a", (3, 4, 5), PARAMS))
    stop = threading.Event()
    thread = threading.Thread(
        target=engine.run, args=(stop.is_set,), kwargs={"idle_s": 0.01, "stats_interval_s": 0.02}
    )
    thread.start()
    messages: list[Any] = []
    while sum(isinstance(m, EngineStats) and m.num_running == 0 for m in messages) < 2:
        messages += engine.topic.receive(1.0)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    tokens = [t for m in messages if isinstance(m, tuple) for e in m for t in e.tokens]
    assert len(tokens) == 6
    assert messages[-1].num_free_blocks == 200 and messages[-1].num_steps_total == 6


@pytest.mark.parametrize("stage", ["execute", "verify", "propose"])
def test_a_failing_stage_ends_the_engine_loudly(stage):
    engine = engine_of(NaiveProposer(), ROOMY)
    engine.topic.send(Submit("a", (3, 4, 5), PARAMS))

    def fail(*_):
        raise RuntimeError("the disk is on fire")

    part = {"execute": engine.runner, "verify": engine.verifier, "propose": engine.proposer}[stage]
    setattr(part, stage, fail)
    with pytest.raises(RuntimeError, match="on fire"):
        engine.run(lambda: False)
    last = engine.topic.receive()[-1]
    assert isinstance(last, Fatal) and "RuntimeError: the disk is on fire" in last.message


def test_broken_books_are_noticed_when_the_engine_falls_idle():
    engine = engine_of(NaiveProposer(), ROOMY)
    engine.topic.send(Submit("a", (3, 4, 5), PARAMS))
    engine.scheduler._pool._free.pop()
    with pytest.raises(AssertionError, match="blocks"):
        engine.run(lambda: False, idle_s=0.01)
    assert isinstance(engine.topic.receive()[-1], Fatal)


def test_clearing_the_cache_forgets_prefixes_and_no_token():
    engine = engine_of(NgramProposer(3), ROOMY)
    submits = [Submit(name, tuple(range(2, 22)), PARAMS) for name in "abc"]
    (first,) = run(engine, submits[:1]).values()
    (second,) = run(engine, submits[1:2]).values()
    topic = engine.topic
    assert isinstance(topic, InProcessTopic)
    topic.send(ClearCache("now"))
    engine.step()
    (answer,) = [m for m in topic.receive() if isinstance(m, Cleared)]
    assert answer.request_id == "now" and answer.num_blocks >= 5
    topic.send(ClearCache("again"))
    engine.step()
    assert topic.receive() == [Cleared("again", 0)]
    engine.monitor.check()
    (third,) = run(engine, submits[2:]).values()
    assert first.tokens == second.tokens == third.tokens
