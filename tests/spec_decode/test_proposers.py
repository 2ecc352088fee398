# SPDX-License-Identifier: Apache-2.0
"""What suffix, memory, prediction and hybrid draft, from whom they learn, how they are built."""

import logging
import os
from dataclasses import replace

import numpy as np
import pytest

from fdspec.config import SpeculativeConfig
from fdspec.core import ConfigError, Draft, DraftContext, FinishReason, ModelOutput, Verdict
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.hybrid import HybridProposer
from fdspec.spec_decode.memory import MemoryProposer
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.prediction import PredictionProposer
from fdspec.spec_decode.registry import build_proposer, check_snapshots
from fdspec.spec_decode.suffix import SuffixProposer
from tests.spec_decode.plans import GREEDY, decoding, step_of

NO_OUTPUT = ModelOutput(np.empty((0, 4), np.float32), np.zeros(2, np.int64))


def context(prompt, output, *, name="r", salt="", max_draft=10, **params):
    tokens = np.array([*prompt, *output], np.int32)
    made = replace(GREEDY, **params)
    return DraftContext((name, 0), tokens, len(prompt), max_draft, made, salt)


def drafts(proposer, *contexts):
    return {d.sequence_id[0]: d.tokens.tolist() for d in proposer.propose(contexts)}


def serve(proposer, prompt, output, *, name, salt="", **params):
    """A whole request, token by token."""
    key, made = (name, 0), replace(GREEDY, **params)
    for end in range(len(output)):
        finish = FinishReason.LENGTH if end == len(output) - 1 else None
        plan = decoding(prompt, output[:end], key=key, params=made)._replace(cache_salt=salt)
        verdict = Verdict(key, (output[end],), finish=finish)
        proposer.observe(step_of(plan), NO_OUTPUT, [verdict])
    proposer.forget([key])


LEARNERS = [SuffixProposer, MemoryProposer]


@pytest.mark.parametrize("make", LEARNERS)
def test_a_sequence_is_its_own_source(make):
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    assert drafts(make(3), context(prompt, [2, 3, 4])) == {"r": [5, 6, 7]}


@pytest.mark.parametrize("make", LEARNERS)
def test_an_answer_is_drafted_when_its_question_comes_again(make):
    proposer = make(4)
    answer = [11, 12, 13, 14, 15, 16]
    serve(proposer, [1, 2, 3], answer, name="first")
    found = drafts(proposer, context([1, 2, 3], answer[:3], name="second"))["second"]
    assert found == answer[3 : 3 + len(found)] and len(found) >= 3
    proposer.cache.check()


@pytest.mark.parametrize("make", LEARNERS)
def test_a_tenant_learns_from_itself_only(make):
    proposer = make(4)
    serve(proposer, [1, 2, 3], [11, 12, 13, 14], name="first", salt="a")
    again = [context([1, 2, 3], [11, 12], name=s, salt=s) for s in ("a", "b", "")]
    assert set(drafts(proposer, *again)) == {"a"}


@pytest.mark.parametrize("make", LEARNERS)
def test_nothing_is_learned_from_requests_without_speculation(make):
    proposer = make(4)
    serve(proposer, [1, 2, 3], [11, 12, 13, 14], name="first", max_draft_tokens=0)
    assert proposer.cache.num_finished == 0
    assert drafts(proposer, context([1, 2, 3], [11, 12], name="second")) == {}


@pytest.mark.parametrize("make", LEARNERS)
def test_refused_drafts_are_never_learned(make):
    proposer = make(4)
    key = ("r", 0)
    plan = decoding([1, 2, 3], [5], draft=[77, 78, 79], key=key)
    proposer.observe(
        step_of(plan), NO_OUTPUT, [Verdict(key, (6,), (), 3, finish=FinishReason.STOP)]
    )
    proposer.forget([key])
    (stored,) = proposer.cache.texts()
    assert stored.tokens.tolist()[-2:] == [5, 6]
    assert drafts(proposer, context([9], [77], name="other")) == {}


@pytest.mark.parametrize("make", LEARNERS)
def test_a_sequence_from_elsewhere_is_caught_up_with(make):
    """Its state did not travel; the first draft is the same as if it had been seen all along."""
    seen, unseen = make(4), make(4)
    prompt, output = [1, 2, 3, 4, 5], [9, 2, 3]
    for end in range(len(output)):
        plan = decoding(prompt, output[:end], key=("r", 0))
        seen.observe(step_of(plan), NO_OUTPUT, [Verdict(("r", 0), (output[end],))])
        seen.propose([context(prompt, output[: end + 1])])
    assert drafts(seen, context(prompt, output)) == drafts(unseen, context(prompt, output))


@pytest.mark.parametrize("make", LEARNERS)
def test_a_name_that_is_used_again_starts_anew(make):
    proposer = make(4)
    proposer.propose([context([1, 2, 3, 4], [1, 2])])
    assert drafts(proposer, context([7, 8, 9], [7, 8]))["r"][:2] == [9, 7]
    proposer.forget([("r", 0), ("unknown", 3)])
    proposer.cache.check()


def test_suffix_without_a_memory_of_others():
    proposer = SuffixProposer(4, max_cached_requests=0)
    serve(proposer, [1, 2, 3], [11, 12, 13], name="first")
    assert proposer.cache is None
    assert drafts(proposer, context([1, 2, 3], [11, 12], name="second")) == {}
    assert drafts(proposer, context([1, 2, 3], [1, 2], name="third")) == {"third": [3, 1]}


def test_memory_drafts_a_tree_of_what_followed():
    proposer = MemoryProposer(10)
    for name, last in (("a", 4), ("b", 5), ("c", 5)):
        serve(proposer, [1, 2], [3, last, 8], name=name)
    (draft,) = proposer.propose([context([1, 2], [3], name="d")])
    assert not draft.is_chain
    roots = [t for t, p in zip(draft.tokens, draft.parents, strict=True) if p < 0]
    assert roots == [5, 4]


def test_memory_keeps_the_newest_requests():
    proposer = MemoryProposer(4, max_bytes=20_000)
    for index in range(60):
        serve(proposer, list(range(10 * index, 10 * index + 9)), [1000 + index], name=str(index))
    assert proposer.cache.num_bytes < 30_000
    assert drafts(proposer, context([590, 591], [592], name="new")) == {"new": [593, 594, 595, 596]}
    assert drafts(proposer, context([10, 11], [12], name="old")) == {}


def test_prediction_drafts_for_who_predicts():
    proposer = PredictionProposer(3)
    found = drafts(
        proposer,
        context([1, 2], [5], name="good", prediction=(5, 6, 7, 8, 9)),
        context([1, 2], [4], name="wrong", prediction=(5, 6, 7, 8, 9)),
        context([1, 2], [5], name="none"),
        context([1, 2], [6, 7], name="short", prediction=(5, 6, 7, 8), max_draft=1),
    )
    assert found == {"good": [6, 7, 8], "short": [8]}


class Fixed:
    """Drafts the same for every context, and notes what it was told."""

    def __init__(self, tokens, parents=None):
        self.tokens, self.parents = tokens, parents
        self.forgotten = []

    def propose(self, contexts):
        made = [Draft.chain(c.sequence_id, self.tokens, str(self.tokens[0])) for c in contexts]
        if self.parents is None:
            return made
        parents = np.array(self.parents, np.int32)
        return [Draft(d.sequence_id, d.tokens, parents, d.source) for d in made]

    def observe(self, plan, output, verdicts):
        pass

    def forget(self, sequence_ids):
        self.forgotten += sequence_ids


def edges(draft):
    return list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))


def test_hybrid_extends_the_first_draft_by_the_others():
    hybrid = HybridProposer({"a": Fixed([1, 2, 3]), "b": Fixed([1, 2, 7])})
    (draft,) = hybrid.propose([context([9], [9])])
    assert edges(draft) == [(-1, 1), (0, 2), (1, 3), (1, 7)]
    assert draft.source == "1"
    hybrid = HybridProposer({"a": Fixed([1, 2, 3]), "b": Fixed([5, 6])})
    (draft,) = hybrid.propose([context([9], [9], max_draft=4)])
    assert edges(draft) == [(-1, 1), (0, 2), (1, 3), (-1, 5)]
    assert draft.source == "hybrid" and draft.sources == ("1", "1", "1", "5")
    assert draft.cut(2).sources == ("1", "1")


def test_hybrid_merges_trees():
    first = Fixed([1, 2, 3], [-1, 0, 0])
    second = Fixed([4, 1, 3, 9], [-1, -1, 1, 2])
    (draft,) = HybridProposer({"a": first, "b": second}).propose([context([9], [9])])
    assert edges(draft) == [(-1, 4), (-1, 1), (1, 3), (2, 9), (1, 2)], "the deeper one first"


def test_what_a_prediction_has_too_counts_as_its_own():
    """Whoever guessed it first: `accepted_prediction_tokens` asks what of it came true."""
    for members in ("other", "prediction"), ("prediction", "other"):
        made: dict[str, Proposer] = {
            "other": Fixed([8, 9, 5]),
            "prediction": PredictionProposer(4),
        }
        hybrid = HybridProposer({name: made[name] for name in members})
        (draft,) = hybrid.propose([context([9], [7], prediction=(7, 8, 9, 6))])
        assert sorted(edges(draft)) == [(-1, 8), (0, 9), (1, 5), (1, 6)]
        named = dict(zip(draft.tokens.tolist(), draft.sources or (), strict=True))
        assert named == {8: "prediction", 9: "prediction", 6: "prediction", 5: "8"}


def test_hybrid_prefers_who_was_right():
    hybrid = HybridProposer({"a": Fixed([1, 2]), "b": Fixed([3, 4])})
    for _ in range(5):
        hybrid.propose([context([9], [9])])
        plan = decoding([9], [9], draft=[1, 2])
        hybrid.observe(step_of(plan), NO_OUTPUT, [Verdict(("r", 0), (3, 4), (0,), 2)])
    (draft,) = hybrid.propose([context([9], [9])])
    assert edges(draft) == [(-1, 3), (0, 4), (-1, 1)] or edges(draft) == [(-1, 3), (0, 4)]
    hybrid.forget([("r", 0)])
    (draft,) = hybrid.propose([context([9], [9])])
    assert edges(draft)[0] == (-1, 1), "a new sequence of that name starts anew"


def test_requests_choose_among_the_members():
    a, b = Fixed([1, 2]), Fixed([3, 4])
    hybrid = HybridProposer({"prediction": PredictionProposer(4), "a": a, "b": b})
    found = drafts(
        hybrid,
        context([9], [9], name="a", draft_method="a"),
        context([9], [9], name="b", draft_method="b"),
        context([9], [9], name="both", draft_method="hybrid"),
        context([9], [9], name="unknown", draft_method="c"),
        context([9], [7], name="predicts", draft_method="prediction", prediction=(7, 8)),
    )
    assert found == {"a": [1, 2], "b": [3, 4], "both": [1, 2, 3, 4], "predicts": [8]}


@pytest.mark.parametrize("method", ["ngram", "suffix", "memory", "lookahead", "prediction"])
def test_every_method_takes_predictions(method):
    built = build_proposer(SpeculativeConfig(method=method), vocab_size=100)
    assert built.methods == (method,)
    found = drafts(built.proposer, context([1, 2], [50], prediction=(50, 51, 52, 53)))
    assert found == {"r": [51, 52, 53]}, "a new sequence drafts three tokens"


def test_plain_decoding():
    for config in (None, SpeculativeConfig(method="naive")):
        built = build_proposer(config, vocab_size=100)
        assert isinstance(built.proposer, NaiveProposer) and built.methods == ()
        built.close()


def test_a_hybrid_of_the_configuration():
    members = tuple(SpeculativeConfig(method=name) for name in ("suffix", "ngram"))
    config = SpeculativeConfig(method="hybrid", proposers=members)
    assert build_proposer(config, vocab_size=100).methods == ("hybrid", "suffix", "ngram")


def test_memory_survives_a_restart(tmp_path, caplog):
    path = tmp_path / "texts"
    config = SpeculativeConfig(
        method="memory", memory_snapshot=str(path), adaptive_draft_length=False
    )
    built = build_proposer(config, vocab_size=100)
    serve(built.proposer, [1, 2, 3], [11, 12, 13, 14], name="first")
    built.close()
    again = build_proposer(config, vocab_size=100).proposer
    assert drafts(again, context([1, 2, 3], [11], name="second"))["second"][:3] == [12, 13, 14]
    path.write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING):
        built = build_proposer(config, vocab_size=100)
    assert "is not used: it is not a snapshot of texts" in caplog.text
    assert drafts(built.proposer, context([1, 2, 3], [11], name="third")) == {}


def test_a_snapshot_that_cannot_be_written_is_only_logged(tmp_path, caplog):
    path = tmp_path / "missing" / "texts"
    config = SpeculativeConfig(method="memory", memory_snapshot=str(path))
    with caplog.at_level(logging.WARNING):
        build_proposer(config, vocab_size=100).close()
    assert "cannot be written" in caplog.text


def test_the_folder_of_a_snapshot_is_looked_at_before_anything_is_loaded(tmp_path, monkeypatch):
    def check(path):
        member = SpeculativeConfig(method="memory", memory_snapshot=str(path))
        check_snapshots(member)
        check_snapshots(SpeculativeConfig(method="hybrid", proposers=(member,)))

    check_snapshots(None)
    check(tmp_path / "texts")
    with pytest.raises(ConfigError, match="memory_snapshot: .* there is no folder .*missing; make"):
        check(tmp_path / "missing" / "texts")
    with pytest.raises(ConfigError, match="is a folder; name a file in it"):
        check(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="this user may not write to"):
        check(tmp_path / "texts")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package with a proposer of its own, called `parrot`."""
    package = tmp_path / "parrot.py"
    package.write_text(
        "from fdspec.core import Draft\n"
        "class Parrot:\n"
        "    def __init__(self, config):\n"
        "        self.count = config.num_speculative_tokens\n"
        "        self.word = config.plugin_options['word']\n"
        "    def propose(self, contexts):\n"
        "        return [Draft.chain(c.sequence_id, [self.word] * min(self.count, c.max_draft),\n"
        "                            'parrot') for c in contexts]\n"
        "    def observe(self, plan, output, verdicts): pass\n"
        "    def forget(self, sequence_ids): pass\n"
    )
    info = tmp_path / "parrot-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fdspec.proposers]\nparrot = parrot:Parrot\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_plug_in_is_a_method_like_any_other(plugin):
    config = SpeculativeConfig(
        method="parrot", plugin_options={"word": 7}, adaptive_draft_length=False
    )
    built = build_proposer(config, vocab_size=100)
    assert built.methods == ("parrot",)
    assert drafts(built.proposer, context([1], [2])) == {"r": [7] * 5}
    ngram = SpeculativeConfig(method="ngram")
    member = SpeculativeConfig(method="parrot", plugin_options={"word": 7})
    hybrid = SpeculativeConfig(method="hybrid", proposers=(ngram, member))
    assert build_proposer(hybrid, vocab_size=100).methods == ("hybrid", "ngram", "parrot")


def test_a_plug_in_that_fails_is_named(plugin):
    with pytest.raises(ConfigError, match=r"parrot: the plug-in parrot:Parrot cannot .* TypeError"):
        build_proposer(SpeculativeConfig(method="parrot"), vocab_size=100)
