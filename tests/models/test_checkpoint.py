# SPDX-License-Identifier: Apache-2.0
"""Readers of weight files: values against their own libraries, views, and what errors say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from fdspec.core.errors import CheckpointError
from fdspec.models.checkpoint import (
    DummyCheckpoint,
    GGUFCheckpoint,
    QuantizedTensor,
    SafetensorsCheckpoint,
)
from fdspec.models.files import find_checkpoint
from fdspec.utils.bfloat16 import from_bfloat16
from fdspec.utils.gguf_header import read_gguf_header

SHAPE = (6, 64)


def random_values() -> np.ndarray:
    values = np.random.default_rng(7).standard_normal(SHAPE, dtype=np.float32)
    # Exactly 0 in every element of a block: its scale is 0.
    values[2, :32] = 0.0
    return values


def as_float32(tensor) -> np.ndarray:
    if isinstance(tensor, QuantizedTensor):
        return tensor.dequantize()
    return from_bfloat16(tensor) if tensor.dtype == np.uint16 else tensor.astype(np.float32)


def write_gguf(file: Path, kinds: dict[str, gguf.GGMLQuantizationType]) -> Path:
    writer = gguf.GGUFWriter(str(file), "llama")
    for name, kind in kinds.items():
        data = quantize(random_values(), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def opened(file: Path) -> GGUFCheckpoint:
    return GGUFCheckpoint(read_gguf_header(file))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1"])
def test_gguf_types_equal_the_package(tmp_path, kind):
    kind = gguf.GGMLQuantizationType[kind]
    file = write_gguf(tmp_path / "m.gguf", {"x.weight": kind, "pad": kind, "y.weight": kind})
    checkpoint = opened(file)
    assert list(checkpoint.names()) == ["x.weight", "pad", "y.weight"]
    expected = dequantize(quantize(random_values(), kind), kind)
    for name in checkpoint.names():
        np.testing.assert_array_equal(as_float32(checkpoint.get(name, SHAPE)), expected)


# The package cannot write these; random bytes are valid blocks but for the scales' exponents.
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_gguf_types_that_are_only_dequantised(tmp_path, kind):
    kind = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(3).integers(0, 64, (4, 2 * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_tensor("x", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = opened(tmp_path / "m.gguf").get("x", (4, 2 * block))
    np.testing.assert_array_equal(tensor, dequantize(data, kind))


def test_gguf_codes_are_exact(tmp_path):
    kinds = {name: gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q8_0")}
    checkpoint = opened(write_gguf(tmp_path / "m.gguf", kinds))
    for name, kind in kinds.items():
        tensor = checkpoint.get(name, SHAPE)
        assert isinstance(tensor, QuantizedTensor)
        assert tensor.scales.shape == (6, 2)
        assert np.array_equal(tensor.scales, tensor.scales.astype(np.float16))
        assert (tensor.minima is not None) == (name == "Q4_1")
        order = np.array([5, 0, 1, 2, 3, 4])
        expected = dequantize(quantize(random_values(), kind), kind)[order]
        np.testing.assert_array_equal(tensor.take_rows(order).dequantize(), expected)


def test_gguf_real_model_equals_the_package(smollm2_path):
    reader = gguf.GGUFReader(smollm2_path)
    metadata = read_gguf_header(smollm2_path).metadata
    own = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert metadata == {key: field.contents() for key, field in own.items()}
    checkpoint = opened(smollm2_path)
    assert list(checkpoint.names()) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors[:12]:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if tensor.name == "token_embd.weight":
            continue
        expected = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        np.testing.assert_array_equal(as_float32(checkpoint.get(tensor.name, shape)), expected)


def test_gguf_errors(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", {"x.weight": gguf.GGMLQuantizationType.Q8_0})
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor 'y' \[1, 2\] is missing"):
        opened(file).get("y", (1, 2))
    with pytest.raises(CheckpointError, match=r"'x.weight' has shape \[6, 64\].*needs \[64, 6\]"):
        opened(file).get("x.weight", (64, 6))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="beyond the end of the file"):
        opened(file).get("x.weight", SHAPE)


def save_sharded(folder: Path, shards: dict[str, dict[str, torch.Tensor]]) -> None:
    weight_map = {}
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
        weight_map.update(dict.fromkeys(tensors, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_values(tmp_path, dtype):
    values = torch.from_numpy(random_values()).to(dtype)
    save_sharded(tmp_path, {"1.safetensors": {"a": values}, "2.safetensors": {"b": values * 2}})
    checkpoint = SafetensorsCheckpoint(find_checkpoint(tmp_path).safetensors)
    assert sorted(checkpoint.names()) == ["a", "b"]
    np.testing.assert_array_equal(as_float32(checkpoint.get("a", SHAPE)), values.float().numpy())
    np.testing.assert_array_equal(
        as_float32(checkpoint.get("b", SHAPE)), (values * 2).float().numpy()
    )
    assert checkpoint.file_of("b").endswith("2.safetensors")


def test_safetensors_are_views_of_the_file(tmp_path):
    save_file({"a": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    tensor = SafetensorsCheckpoint([tmp_path / "model.safetensors"]).get("a", (4, 4))
    assert isinstance(tensor, np.ndarray)
    assert not tensor.flags.owndata and not tensor.flags.writeable
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-4:] = np.float32(5).tobytes()
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(data)
    assert tensor[3, 3] == 5


def test_safetensors_errors(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4, 2), "i": torch.ones(2, dtype=torch.int64)}, file)
    checkpoint = SafetensorsCheckpoint([file])
    name = re.escape(str(file))
    with pytest.raises(CheckpointError, match=rf"{name}: tensor 'b' \[3\] is missing"):
        checkpoint.get("b", (3,))
    with pytest.raises(CheckpointError, match=rf"{name}.*'a' has shape \[4, 2\].*needs \[2, 4\]"):
        checkpoint.get("a", (2, 4))
    with pytest.raises(CheckpointError, match="type I64.*supported: F32, F16, BF16"):
        checkpoint.get("i", (2,))
    with pytest.raises(CheckpointError, match="also in"):
        SafetensorsCheckpoint([file, _copy(file, tmp_path / "again.safetensors")])


def _copy(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "incomplete"),
        (lambda data: data[:4], "incomplete"),
        (lambda data: b"\xff" * 8 + data[8:], "not a safetensors file"),
        (lambda data: data[:8] + b"[" + data[9:], "damaged"),
        (lambda data: data[:-1], "beyond the end of the file"),
    ],
)
def test_damaged_safetensors(tmp_path, change, message):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4, 2)}, file)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsCheckpoint([file])
    assert str(file) in str(caught.value)


def test_files_of_a_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \.safetensors, \.gguf or \.pdparams file$"):
        find_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="save_pretrained"):
        find_checkpoint(tmp_path)
    (tmp_path / "b.gguf").touch()
    assert find_checkpoint(tmp_path).gguf == tmp_path / "b.gguf"
    (tmp_path / "a.gguf").touch()
    with pytest.raises(CheckpointError, match=r"several GGUF files.*a\.gguf, b\.gguf"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path / "a.gguf").gguf == tmp_path / "a.gguf"
    (tmp_path / "consolidated.safetensors").touch()
    (tmp_path / "model.safetensors").touch()
    assert find_checkpoint(tmp_path).safetensors == (tmp_path / "model.safetensors",)
    index = {"weight_map": {"x": "s-1.safetensors", "y": "s-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "s-1.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"s-2\.safetensors: no such file"):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        find_checkpoint(tmp_path / "pytorch_model.bin")


def test_dummy_weights_are_the_same_each_time():
    def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return as_float32(DummyCheckpoint().get(name, shape))

    np.testing.assert_array_equal(values("x", (8, 4)), values("x", (8, 4)))
    assert not np.array_equal(values("x", (8, 4)), values("y", (8, 4)))
    large = values("z", (3000, 2048))
    assert len(np.unique(large[:, :4], axis=0)) == 3000
    assert abs(large.std() * 2048**0.5 - 1) < 0.01
    assert values("a_norm", (3,)).tolist() == [1, 1, 1]
    assert values("a.bias", (3,)).tolist() == [0, 0, 0]
