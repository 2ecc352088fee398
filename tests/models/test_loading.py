# SPDX-License-Identifier: Apache-2.0
"""Models from files: formats, GGUF of each family, and what is said about wrong tensors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models import ModelOptions, load_model
from fdspec.ops import PackedWeight, WeightFormat, dequantize_weight
from fdspec.utils.gguf_header import read_gguf_header
from tests.models import oracle
from tests.models.gguf_files import write_gguf
from tests.models.stepping import execute, make_runner, share

PROMPT = list(range(3, 60))


def logits(path, quantization: str | None = "none") -> np.ndarray:
    return execute(make_runner(path, quantization), share(0, PROMPT, 0, len(PROMPT)))[0]


def difference(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(result - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("variant", ["llama", "llama_tied_biased", "qwen2", "qwen3", "ernie"])
def test_gguf_of_each_family_equals_transformers(tmp_path, variant):
    model = oracle.make_tiny(variant, tmp_path / "folder")
    architecture = {"ernie": "ernie4_5"}.get(variant, variant.split("_")[0])
    file = write_gguf(tmp_path / "model.gguf", model, architecture)
    assert difference(logits(file), oracle.logits_of(model, PROMPT)) <= 1e-4
    np.testing.assert_array_equal(logits(file), logits(tmp_path / "folder"))


def test_gguf_rope_factors_are_llama3_scaling(tmp_path):
    model = oracle.make_tiny("llama3_rope", tmp_path / "folder")
    plain = 10000.0 ** -(np.arange(0, 16, 2) / 16)
    scaled = model.model.rotary_emb.inv_freq.numpy()
    factors = {"rope_freqs.weight": (plain / scaled).astype(np.float32)}
    file = write_gguf(tmp_path / "model.gguf", model, "llama", extra=factors)
    assert difference(logits(file), oracle.logits_of(model, PROMPT)) <= 1e-4


def matrices(path, quantization: str | None) -> dict[str, PackedWeight]:
    """Every packed matrix of a model by the name of its layer."""
    model = load_model(path, ModelOptions(quantization=quantization))
    return {
        name: layer.packed_weight
        for name, layer in model.named_sublayers()
        if hasattr(layer, "packed_weight")
    }


def check_equal_values(path, quantization: str | None) -> None:
    """All matrices have exactly the values that they have in float32."""
    expected = matrices(path, "none")
    for name, weight in matrices(path, quantization).items():
        np.testing.assert_array_equal(
            dequantize_weight(weight), dequantize_weight(expected[name]), err_msg=name
        )


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_codes_are_kept_without_loss(tmp_path, kind):
    model = oracle.make_tiny("llama", tmp_path)
    file = write_gguf(tmp_path / "model.gguf", model, "llama", lambda name: kind)
    minimum = kind == "Q4_1"
    bits = 8 if kind == "Q8_0" else 4
    formats = {weight.format for weight in matrices(file, None).values()}
    assert formats == {WeightFormat(bits, 32, minimum, float_activations=False)}
    check_equal_values(file, None)
    # A named format that can hold the codes takes them over, too.
    name = {"Q4_0": "wint4_g32_a16", "Q4_1": "wint4_g32_min_a16", "Q8_0": "wint8_g32_a16"}[kind]
    for layer, weight in matrices(file, name).items():
        if layer not in ("embedding", "output"):
            np.testing.assert_array_equal(
                dequantize_weight(weight), dequantize_weight(matrices(file, "none")[layer])
            )


def test_gguf_mixed_types_share_a_format_without_loss(tmp_path):
    """Value in 8 bits beside query and key in 4 symmetric ones: all become 8, codes unchanged."""
    model = oracle.make_tiny("llama", tmp_path)

    def kind_of(name: str) -> str:
        return "Q8_0" if "attn_v" in name or "ffn_up" in name else "Q4_0"

    file = write_gguf(tmp_path / "model.gguf", model, "llama", kind_of)
    attention = load_model(file).layers[0].attention
    assert attention.qkv.packed_weight.format == WeightFormat(8, 32, False, False)
    assert attention.output.packed_weight.format == WeightFormat(4, 32, False, False)
    check_equal_values(file, None)


def test_gguf_types_without_a_common_format_become_bfloat16(tmp_path):
    model = oracle.make_tiny("llama", tmp_path)

    def kind_of(name: str) -> str:
        return "Q8_0" if "attn_v" in name else "Q4_1"

    file = write_gguf(tmp_path / "model.gguf", model, "llama", kind_of)
    attention = load_model(file).layers[0].attention
    assert attention.qkv.packed_weight.format == WeightFormat.parse("bfloat16")
    assert attention.output.packed_weight.format == WeightFormat(4, 32, True, False)


@pytest.mark.parametrize(
    ("kind", "stored"), [("Q5_0", "wint8_g32"), ("F16", "bfloat16"), ("BF16", "bfloat16")]
)
def test_other_gguf_types_take_the_nearest_format(tmp_path, kind, stored):
    model = oracle.make_tiny("llama", tmp_path)
    file = write_gguf(tmp_path / "model.gguf", model, "llama", lambda name: kind)
    expected = matrices(file, "none")
    for name, weight in matrices(file, None).items():
        assert weight.format == WeightFormat.parse(stored)
        values = dequantize_weight(expected[name])
        # Half a step of 8 bits in each group, or half a unit of bfloat16.
        bound = np.abs(values).max() * (0.5 / 127 if kind == "Q5_0" else 2**-8)
        assert np.abs(dequantize_weight(weight) - values).max() <= bound


@pytest.mark.parametrize(
    ("quantization", "projection", "vocabulary", "agreement"),
    [
        (None, "bfloat16", "bfloat16", 0.9999),
        ("none", "none", "none", 1 - 1e-9),
        ("bfloat16", "bfloat16", "bfloat16", 0.9999),
        ("wint8", "wint8", "wint8", 0.995),
        ("wint8_a16", "wint8_a16", "wint8_a16", 0.995),
        ("wint8_g32", "wint8_g32", "wint8_g32", 0.995),
        ("wint4", "wint4_g32_min", "wint8_g32", 0.8),
        ("wint4_g32", "wint4_g32", "wint8_g32", 0.8),
        ("wint4_g64_a16", "wint4_g64_a16", "wint8_g64_a16", 0.8),
    ],
)
def test_quantization_of_a_folder(tmp_path, quantization, projection, vocabulary, agreement):
    model = oracle.make_tiny("llama", tmp_path)
    for name, weight in matrices(tmp_path, quantization).items():
        expected = vocabulary if name in ("embedding", "output") else projection
        assert weight.format == WeightFormat.parse(expected)
    result = logits(tmp_path, quantization)
    expected_logits = oracle.logits_of(model, PROMPT)
    assert np.corrcoef(result.ravel(), expected_logits.ravel())[0, 1] >= agreement


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_stored_float_types(tmp_path, dtype):
    model = oracle.make_tiny("llama", tmp_path).to(dtype)
    model.save_pretrained(tmp_path)
    expected = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert difference(logits(tmp_path), oracle.logits_of(expected, PROMPT)) <= 1e-4


def test_shards_and_a_single_file_are_the_same_model(tmp_path):
    model = oracle.make_tiny("qwen3", tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="50KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one = logits(tmp_path / "one")
    np.testing.assert_array_equal(logits(tmp_path / "many"), one)
    np.testing.assert_array_equal(logits(tmp_path / "one" / "model.safetensors"), one)


def test_tied_weights_are_held_once(tmp_path):
    oracle.make_tiny("llama_tied_biased", tmp_path / "tied")
    oracle.make_tiny("llama_tied_biased", tmp_path / "untied", tie_word_embeddings=False)
    tied, untied = load_model(tmp_path / "tied"), load_model(tmp_path / "untied")
    embedding_bytes = tied.embedding.packed_weight.data.nbytes
    assert untied.weight_bytes - tied.weight_bytes == embedding_bytes


def edit(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
            r"tensor 'model.layers.1.mlp.up_proj.weight' \[96, 64\] is missing",
        ),
        (
            lambda tensors: tensors.update({"model.layers.1.mlp.up_projj.weight": torch.ones(1)}),
            r"does not use 'model.layers.1.mlp.up_projj.weight'.*"
            r"nearest that is used is 'model.layers.1.mlp.up_proj.weight'",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(65)}),
            r"'model.norm.weight' has shape \[65\], the model needs \[64\]",
        ),
        (
            lambda tensors: tensors.update({f"extra.{index}": torch.ones(1) for index in range(9)}),
            "and 6 more",
        ),
    ],
)
def test_wrong_tensors_are_named(tmp_path, change, message):
    oracle.make_tiny("llama", tmp_path)
    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(caught.value)


def test_damaged_scales_are_named(tmp_path):
    model = oracle.make_tiny("llama", tmp_path)
    file = write_gguf(tmp_path / "model.gguf", model, "llama", lambda name: "Q8_0")
    offset = read_gguf_header(file).tensors["blk.1.ffn_down.weight"].offset_bytes
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(np.float16("nan").tobytes())
    with pytest.raises(
        CheckpointError, match=r"model\.gguf: tensor 'blk.1.ffn_down.weight' is dam"
    ):
        load_model(file)


def test_known_leftovers_are_ignored(tmp_path):
    oracle.make_tiny("llama_tied_biased", tmp_path)
    before = logits(tmp_path)

    def add(tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    edit(tmp_path, add)
    np.testing.assert_array_equal(logits(tmp_path), before)


def test_dummy_weights_need_only_a_configuration(tmp_path):
    oracle.make_tiny("qwen2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first = load_model(tmp_path, ModelOptions(dummy_weights=True))
    assert first.weight_bytes > 0


def test_options_that_the_model_cannot_meet(tmp_path):
    oracle.make_tiny("llama", tmp_path)
    with pytest.raises(ConfigError, match="max_model_len must be between 1 and 512"):
        load_model(tmp_path, ModelOptions(max_model_len=513))
    with pytest.raises(ConfigError, match="quantization: unknown.*'wint5'.*did you mean 'wint"):
        load_model(tmp_path, ModelOptions(quantization="wint5"))


def test_layers_are_paddle_layers(tmp_path):
    """Weights are buffers that share the memory the kernels read; the output may be a tensor."""
    import paddle

    oracle.make_tiny("llama", tmp_path)
    model = load_model(tmp_path)
    state = model.state_dict()
    packed = model.layers[2].mlp.down.packed_weight
    assert state["layers.2.mlp.down.weight"].data_ptr() == packed.data.ctypes.data
    assert "rotary" not in json.dumps(list(state))
    ids = np.array([5, 6], dtype=np.int32)
    tensor = model.embedding(paddle.to_tensor(ids))
    assert isinstance(tensor, paddle.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), model.embedding(ids))
