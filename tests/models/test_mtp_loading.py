# SPDX-License-Identifier: Apache-2.0
"""Draft heads from folders and from checkpoints of several layouts; what does not fit is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models import ModelOptions, load_model
from fdspec.models.mtp_loading import load_mtp_folder, load_own_mtp
from fdspec.models.mtp_names import ERNIE, LAYOUTS
from tests.exactness.mtp_reference import random_weights, write_head
from tests.models.oracle import make_tiny


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_tiny("llama", folder)
    return load_model(folder, ModelOptions(quantization="none", max_model_len=64))


def outputs_of(head) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best token and output of one row, and the state that it reads."""
    caches = [np.zeros((1, head.num_kv_heads, 16, head.head_dim), np.float32) for _ in range(2)]
    states = np.random.default_rng(1).normal(0, 1, (1, head.hidden_size)).astype(np.float32)
    state = head.target_state([states])
    best, out = np.empty(1, np.int32), np.empty((1, head.hidden_size), np.float32)
    head.lower(caches).run(
        np.array([7], np.int32),
        np.array([1], np.int32),
        slots=np.array([1]),
        block_table=np.array([[0]], np.int32),
        row_splits=np.array([0, 1], np.int32),
        context_lens=np.array([0], np.int32),
        parents=np.array([-1], np.int32),
        selected_rows=np.array([0]),
        out=best,
        hidden=state,
        hidden_out=out,
    )
    return best, out, state


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.projection)
def test_every_layout_is_the_same_head(target, tmp_path, layout):
    write_head(tmp_path / "folder", target.config, None)
    expected = outputs_of(load_mtp_folder(tmp_path / "folder", target, "none"))
    names = layout.at(target.config.num_layers)
    tensors = {}
    for name, values in random_weights(target.config).items():
        for field in ("embedding_norm", "hidden_norm", "projection", "block"):
            name = name.replace(getattr(ERNIE, field), f"<{field}>")
        for field in ("embedding_norm", "hidden_norm", "projection", "block"):
            name = name.replace(f"<{field}>", getattr(names, field))
        if names.projection in name and names.hidden_first:
            values = np.roll(values, target.config.hidden_size, axis=1)
        tensors[name] = np.ascontiguousarray(values)
    if names.final_norm:
        tensors[f"{names.final_norm}.weight"] = target.norm.parameters_of_rows[0]
    save_file(tensors, tmp_path / "model.safetensors")
    head = load_own_mtp(tmp_path / "model.safetensors", target, "none")
    for mine, theirs in zip(outputs_of(head), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_its_own_format_and_some_tokens(target, tmp_path):
    ids = np.array([3, 5, 300], np.int32)
    write_head(tmp_path, target.config, ids)
    full = load_mtp_folder(tmp_path, target, "none")
    small = load_mtp_folder(tmp_path, target, "wint8")
    assert small.weight_bytes < 0.5 * full.weight_bytes
    for head in (full, small):
        assert head.draft_token_ids is not None and head.draft_token_ids.tolist() == [3, 5, 300]
        assert outputs_of(head)[0] < 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', a head for method mtp has 'fdspec_mtp'"),
        ({"hidden_size": 32}, "is for a model of hidden_size 32, the served one has 64"),
        ({"head_dim": "x"}, "'head_dim' must be a number: 'x'"),
        ({"intermediate_size": 100}, r"has shape \[96, 64\], the model needs \[100, 64\]"),
    ],
)
def test_what_does_not_fit(target, tmp_path, change, message):
    write_head(tmp_path, target.config, None)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises((ConfigError, CheckpointError), match=message):
        load_mtp_folder(tmp_path, target, "none")


@pytest.mark.parametrize("ids", [[5, 3], [3, 3], [3, 320]])
def test_token_ids_must_ascend(target, tmp_path, ids):
    write_head(tmp_path, target.config, np.array(ids, np.int32))
    with pytest.raises(CheckpointError, match="draft_token_ids must ascend within 0 .. 319"):
        load_mtp_folder(tmp_path, target, "none")


def test_nothing_there(target, tmp_path):
    with pytest.raises(ConfigError, match="no draft head: config.json is missing"):
        load_mtp_folder(tmp_path, target, None)
    make_tiny("llama", tmp_path)
    with pytest.raises(ConfigError, match="has no layer that predicts further tokens; set specula"):
        load_own_mtp(tmp_path, target, None)
