# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as Paddle writes them are the same models; pickles run nothing."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from fdspec.core.errors import CheckpointError
from fdspec.models import load_model, read_model_config
from fdspec.models.checkpoint import PdparamsCheckpoint, open_checkpoint
from tests.models import oracle
from tests.models.paddle_files import paddle_tensors, write_pdparams, write_safetensors
from tests.models.stepping import execute, make_runner, share

PROMPT = list(range(3, 60))


def logits(path) -> np.ndarray:
    return execute(make_runner(path), share(0, PROMPT, 0, len(PROMPT)))[0]


@pytest.mark.parametrize(
    ("variant", "fused", "prefix"),
    [
        ("ernie", False, "model."),
        ("ernie", True, "ernie."),
        ("ernie_untied_biased", True, "model."),
        ("qwen2", False, "model."),
        ("ernie_moe", True, "ernie."),
        ("ernie_moe", False, "model."),
    ],
)
def test_paddle_layout_is_the_same_model(tmp_path, variant, fused, prefix):
    oracle.make_tiny(variant, tmp_path)
    expected = logits(tmp_path)
    write_safetensors(tmp_path, paddle_tensors(tmp_path, fused=fused, prefix=prefix))
    np.testing.assert_array_equal(logits(tmp_path), expected)


def test_pdparams_are_the_same_model(tmp_path):
    oracle.make_tiny("ernie", tmp_path)
    expected = logits(tmp_path)
    file = write_pdparams(tmp_path, paddle_tensors(tmp_path, fused=True))
    np.testing.assert_array_equal(logits(tmp_path), expected)
    np.testing.assert_array_equal(logits(file), expected)


def test_pdparams_in_bfloat16(tmp_path):
    model = oracle.make_tiny("ernie", tmp_path)
    config = read_model_config(tmp_path)
    write_pdparams(tmp_path, paddle_tensors(tmp_path, fused=False), "bfloat16")
    checkpoint = open_checkpoint(tmp_path, config)
    name = "model.layers.1.mlp.down_proj.weight"
    bits = checkpoint.get(name, (config.hidden_size, config.intermediate_size))
    expected = model.state_dict()[name].to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(bits, expected)
    assert checkpoint.bits_per_weight(name) == 16


def test_a_fused_tensor_of_another_size_is_named(tmp_path):
    oracle.make_tiny("ernie", tmp_path)
    tensors = paddle_tensors(tmp_path, fused=True)
    name = "model.layers.2.self_attn.qkv_proj.weight"
    tensors[name] = tensors[name][:, 1:].copy()
    write_safetensors(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"2\.self_attn\.qkv_proj\.weight' has shape \[191"):
        load_model(tmp_path)


class Evil:
    """Pickled, it asks the reader to run a command."""

    def __reduce__(self):
        return os.system, ("touch /tmp/fdspec_was_here",)


class Big:
    """Pickled, it asks for an array of another size than its bytes."""

    def __init__(self, state: tuple) -> None:
        self.state = state

    def __reduce__(self):
        reconstruct = np.zeros(1).__reduce__()[0]
        return reconstruct, (np.ndarray, (0,), b"b"), self.state


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"x": Evil()}, r"names (posix|nt)\.system.*a pickle could run any program"),
        ({"x": [1, 2]}, "'x' is no array"),
        ([np.zeros(1, np.float32)], "holds a list"),
        ({"x": np.zeros(3, np.int64)}, "type 'i8', which is not supported"),
        ({"x": np.zeros(3, object)}, "type 'O8', which is not supported|is no array"),
        ({"x": np.zeros(3, ">f4")}, "not little-endian"),
        ({"x": Big((1, (5,), np.dtype("f4"), False, bytes(8)))}, r"'x' \[5\] has 2 values"),
        ({"x": Big((1, (-5,), np.dtype("f4"), False, bytes(8)))}, "'x' is damaged"),
        ({"x": Big((1, (5,), np.dtype("f4"), False, "text"))}, "'x' is damaged"),
        ({"x": Big((1, (5,)))}, "unknown form"),
    ],
)
def test_pickles_run_nothing_and_say_what_is_wrong(tmp_path, state, message, protocol):
    file = tmp_path / "x.pdparams"
    file.write_bytes(pickle.dumps(state, protocol))
    with pytest.raises(CheckpointError, match=message) as caught:
        PdparamsCheckpoint((file,))
    assert str(file) in str(caught.value)
    assert not os.path.exists("/tmp/fdspec_was_here")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_of_every_protocol_of_paddle(tmp_path, protocol):
    expected: dict[str, np.ndarray] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
    }
    file = tmp_path / "x.pdparams"
    file.write_bytes(pickle.dumps(expected, protocol))
    checkpoint = PdparamsCheckpoint((file,))
    for name, array in expected.items():
        np.testing.assert_array_equal(checkpoint.get(name, array.shape), array)
    with pytest.raises(CheckpointError, match="'c'.*is missing"):
        checkpoint.get("c", (1,))
    with pytest.raises(CheckpointError, match="is also in"):
        PdparamsCheckpoint((file, file))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="cannot be read"):
        PdparamsCheckpoint((file,))
