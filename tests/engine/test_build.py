# SPDX-License-Identifier: Apache-2.0
"""What the configuration's keys do to the building of an engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fdspec.config import config_from_options
from fdspec.core import ConfigError, SamplingParams, Submit
from fdspec.engine.build import build_engine
from fdspec.models import read_model_config
from fdspec.scheduler.topic import InProcessTopic
from tests.entrypoints.tiny_tokenizer import save_tokenizer
from tests.exactness.mtp_reference import write_head
from tests.models.oracle import make_tiny


@pytest.mark.parametrize("folder", [None, "own"])
def test_packed_weights_are_kept_where_the_keys_say(tmp_path, monkeypatch, smollm2_path, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    options: dict[str, object] = {
        "model": str(smollm2_path),
        "max_model_len": 64,
        "num_gpu_blocks_override": 1,
    }
    if folder is not None:
        options["weight_cache_folder"] = str(tmp_path / folder)
    for size_gib, expected in ((0, 0), (1, 1), (1, 1)):
        config = config_from_options({**options, "weight_cache_gib": size_gib}).config
        build_engine(config, InProcessTopic()).close()
        place = tmp_path / "user" / "fdspec" / "weights" if folder is None else tmp_path / folder
        assert len(list(tmp_path.rglob("*.weights"))) == expected
        assert len(list(place.glob("*.weights"))) == expected


@pytest.fixture
def tiny_models(tmp_path):
    """A target, a drafter of the same tokenizer with a padded vocabulary, and one of another."""
    for name, vocab_size in (("target", 320), ("drafter", 384), ("stranger", 320)):
        folder = tmp_path / name
        make_tiny("llama", folder, vocab_size=vocab_size, num_hidden_layers=1)
        save_tokenizer(folder)
    file = tmp_path / "stranger" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    file.write_text(json.dumps(tokenizer))
    return tmp_path


def options_of(folder, **speculative):
    return config_from_options(
        {
            "model": str(folder / "target"),
            "num_gpu_blocks_override": 8,
            "weight_cache_gib": 0,
            "speculative_config": speculative,
        }
    ).config


@pytest.mark.parametrize("method", ["draft_model", "hybrid", "mtp"])
def test_a_draft_model_drafts(tiny_models, method):
    own: dict[str, Any] = {
        "method": "draft_model",
        "model": str(tiny_models / "drafter"),
        "quantization": "wint8",
    }
    if method == "hybrid":
        own = {"method": "hybrid", "proposers": [{"method": "ngram"}, own]}
    if method == "mtp":
        config = read_model_config(tiny_models / "target")
        write_head(tiny_models / "head", config, np.arange(100, dtype=np.int32))
        own = {"method": "mtp", "model": str(tiny_models / "head")}
    topic = InProcessTopic()
    built = build_engine(options_of(tiny_models, **own, adaptive_draft_length=False), topic)
    drafter = "mtp" if method == "mtp" else "draft_model"
    assert drafter in built.ready.speculative_methods
    params = SamplingParams(max_tokens=8, temperature=0.0, seed=0, ignore_eos=True)
    topic.send(Submit("a", (5, 6, 7), params))
    events = [event for _ in range(9) for event in built.engine.step()]
    assert sum(len(event.tokens) for event in events) == 8
    assert drafter in {event.draft.source for event in events if event.draft is not None}
    built.close()


def test_a_draft_model_with_another_tokenizer_is_refused(tiny_models):
    config = options_of(tiny_models, model=str(tiny_models / "stranger"))
    with pytest.raises(
        ConfigError, match="stranger has another tokenizer .*: 2 tokens differ, the first is 65 "
    ):
        build_engine(config, InProcessTopic())
