# SPDX-License-Identifier: Apache-2.0
"""Packed weights that are kept between starts: the same bits, and never those of something else."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from fdspec.core.errors import CheckpointError
from fdspec.models import ModelOptions, WeightCache, load_model, loading, user_cache_folder
from fdspec.models.content_digest import content_digest, digest_of_files
from fdspec.models.packed_file import DamagedFile, PackedFile, PackedFileWriter
from fdspec.ops import (
    WeightFormat,
    isa,
    packed_layout_fingerprint,
    quantize_weight,
    set_isa,
    supported_isas,
)
from tests.models import oracle
from tests.models.gguf_files import write_gguf

GIB = 2**30


@pytest.fixture
def cache(tmp_path) -> WeightCache:
    return WeightCache(tmp_path / "cache", GIB)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A GGUF file of a family whose query and key rows are permuted."""
    model = oracle.make_tiny("llama_tied_biased", tmp_path / "folder")
    return write_gguf(tmp_path / "model.gguf", model, "llama", lambda name: "Q4_1")


def arrays(path: Path, **options) -> dict[str, np.ndarray]:
    """Every buffer of a model by name."""
    return {
        name: np.array(buffer.numpy())
        for name, buffer in load_model(path, ModelOptions(**options)).named_buffers()
    }


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert list(first) == list(second)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def kept(cache: WeightCache) -> list[Path]:
    return sorted(cache.folder.glob("*.weights"))


def refuse(*_: object) -> None:
    raise AssertionError("the checkpoint's tensors are read again")


@pytest.mark.parametrize("quantization", [None, "none", "bfloat16", "wint8", "wint4_g64_a16"])
@pytest.mark.parametrize("variant", ["llama_tied_biased", "qwen2", "qwen3"])
def test_a_second_start_has_the_same_bits(tmp_path, cache, monkeypatch, variant, quantization):
    oracle.make_tiny(variant, tmp_path / "folder")
    plain = arrays(tmp_path / "folder", quantization=quantization)
    assert_same(plain, arrays(tmp_path / "folder", quantization=quantization, cache=cache))
    monkeypatch.setattr("fdspec.models.weights.WeightLoader._read", refuse)
    assert_same(plain, arrays(tmp_path / "folder", quantization=quantization, cache=cache))


def test_gguf_files_are_kept_too(checkpoint, cache, monkeypatch):
    plain = arrays(checkpoint)
    assert_same(plain, arrays(checkpoint, cache=cache))
    monkeypatch.setattr("fdspec.models.weights.WeightLoader._read", refuse)
    assert_same(plain, arrays(checkpoint, cache=cache))


def test_every_choice_has_a_file_of_its_own(checkpoint, cache):
    for quantization in (None, "wint8", "wint8_a16", "none"):
        load_model(checkpoint, ModelOptions(quantization=quantization, cache=cache))
    assert len(kept(cache)) == 4
    load_model(checkpoint, ModelOptions(cache=cache, max_model_len=17))
    assert len(kept(cache)) == 4


def test_the_same_checkpoint_elsewhere_shares_the_file(tmp_path, checkpoint, cache):
    load_model(checkpoint, ModelOptions(cache=cache))
    (tmp_path / "elsewhere").mkdir()
    moved = checkpoint.rename(tmp_path / "elsewhere" / "other.gguf")
    load_model(moved, ModelOptions(cache=cache))
    assert len(kept(cache)) == 1


@pytest.mark.parametrize("what", ["packed_layout_fingerprint", "__version__"])
def test_another_build_does_not_use_the_file(checkpoint, cache, monkeypatch, what):
    load_model(checkpoint, ModelOptions(cache=cache))
    other = "other" if what == "__version__" else lambda: "other"
    monkeypatch.setattr(loading, what, other)
    load_model(checkpoint, ModelOptions(cache=cache))
    assert len(kept(cache)) == 2


def test_a_changed_checkpoint_is_packed_again(tmp_path, cache):
    file = tmp_path / "model.gguf"
    for seed in (0, 1):
        model = oracle.make_tiny("llama", tmp_path / f"folder{seed}")
        if seed:
            model.model.embed_tokens.weight.data[3, 5] += 1
        write_gguf(file, model, "llama")
        # Settled long ago, so that the first one's digest is remembered.
        os.utime(file, (seed + 1, seed + 1))
        assert_same(arrays(file), arrays(file, cache=cache))
    assert len(kept(cache)) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "does not begin and end"),
        (lambda data: b"", "has only 0 bytes"),
        (lambda data: data[:4096] + data[8192:], "does not end where the file"),
        (lambda data: data[:-80] + b"?" + data[-79:], "digest"),
        (lambda data: b"X" + data[1:], "does not begin and end"),
        (lambda data: data[:4101] + bytes([data[4101] ^ 1]) + data[4102:], "does not have the by"),
        (lambda data: data[:4096] + bytes(512) + data[4608:], "does not have the bytes that were"),
    ],
)
def test_a_damaged_file_is_replaced(checkpoint, cache, caplog, damage, message):
    plain = arrays(checkpoint, cache=cache)
    (file,) = kept(cache)
    whole = file.read_bytes()
    # A new file: the old one is mapped by the model above.
    file.unlink()
    file.write_bytes(damage(whole))
    with caplog.at_level("WARNING", "fdspec.models.weight_cache"):
        assert_same(plain, arrays(checkpoint, cache=cache))
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert message in record.getMessage() and str(file) in record.getMessage()
    assert file.read_bytes() == whole


def test_a_file_in_a_folder_that_cannot_be_written_is_used(checkpoint, cache, caplog, monkeypatch):
    plain = arrays(checkpoint, cache=cache)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("fdspec.models.weight_cache.os.utime", refuse)
    monkeypatch.setattr("fdspec.models.weight_cache.WeightCache.create", refuse)
    assert_same(plain, arrays(checkpoint, cache=cache))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_file_that_lacks_a_matrix_is_replaced(checkpoint, cache, caplog):
    plain = arrays(checkpoint, cache=cache)
    (file,) = kept(cache)
    file.unlink()
    writer = PackedFileWriter(file)
    writer.finish()
    writer.close()
    with caplog.at_level("WARNING", "fdspec.models.weight_cache"):
        assert_same(plain, arrays(checkpoint, cache=cache))
    assert "has no matrix 'token_embd.weight' of shape [320, 64]" in caplog.text
    assert_same(plain, arrays(checkpoint, cache=cache))


def test_a_wrong_checkpoint_leaves_nothing(tmp_path, cache):
    model = oracle.make_tiny("llama", tmp_path / "folder")
    extra = {"blk.0.unknown.weight": np.zeros(4, np.float32)}
    file = write_gguf(tmp_path / "model.gguf", model, "llama", extra=extra)
    with pytest.raises(CheckpointError, match="does not use"):
        load_model(file, ModelOptions(cache=cache))
    assert [path.suffix for path in cache.folder.iterdir() if path.suffix != ".digest"] == []


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path, checkpoint, caplog):
    (tmp_path / "file").write_text("")
    cache = WeightCache(tmp_path / "file" / "cache", GIB)
    with caplog.at_level("WARNING", "fdspec.models.weight_cache"):
        assert_same(arrays(checkpoint), arrays(checkpoint, cache=cache))
    assert "weight_cache_folder names another folder" in caplog.text


@pytest.mark.parametrize("full_after", [1, 9])
def test_a_full_disk_is_no_obstacle(checkpoint, cache, caplog, monkeypatch, full_after):
    plain = arrays(checkpoint)
    calls = []

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(len(data))
        if len(calls) > full_after:
            raise OSError(28, "No space left on device")
        return original(descriptor, data, offset)

    original = os.pwrite
    monkeypatch.setattr("os.pwrite", pwrite)
    with caplog.at_level("WARNING", "fdspec.models.weight_cache"):
        assert_same(plain, arrays(checkpoint, cache=cache))
    assert "No space left on device" in caplog.text
    assert [path.suffix for path in cache.folder.iterdir() if path.suffix != ".digest"] == []


def write_file(cache: WeightCache, key: str, num_values: int) -> None:
    writer = cache.create(key)
    assert writer is not None
    writer.add_vector("v", np.zeros(num_values, np.float32))
    cache.publish(key, writer)


def test_what_was_used_least_recently_goes_first(tmp_path):
    cache = WeightCache(tmp_path, 3 * 20_000)
    for age, key in enumerate(["a", "b", "c"]):
        write_file(cache, key, 2000)
        os.utime(tmp_path / f"{key}.weights", (1000 + age, 1000 + age))
    mapped = cache.open("a")
    assert mapped is not None
    write_file(cache, "d", 10_000)
    assert [file.stem for file in kept(cache)] == ["a", "d"]
    write_file(cache, "e", 20_000)
    assert [file.stem for file in kept(cache)] == ["e"], "one that is too large alone stays"
    assert not mapped.vector("v", 2000).any(), "what is mapped can still be read"


def test_two_at_once_do_not_disturb_each_other(tmp_path):
    cache = WeightCache(tmp_path, GIB)
    writers = [cache.create("a"), cache.create("a")]
    for writer in writers:
        assert writer is not None
        writer.add_vector("v", np.ones(1000, np.float32))
    for writer in writers:
        assert writer is not None
        cache.publish("a", writer)
        file = cache.open("a")
        assert file is not None and file.vector("v", 1000).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.weights"]


def test_what_a_dead_process_left_goes(tmp_path):
    cache = WeightCache(tmp_path, GIB)
    for name in (".x.1.tmp", ".y.2.tmp"):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / ".x.1.tmp", (1000, 1000))
    write_file(cache, "a", 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".y.2.tmp", "a.weights"]


def test_a_digest_is_of_the_content(tmp_path, monkeypatch):
    monkeypatch.setattr("fdspec.models.content_digest._CHUNK_BYTES", 1000)
    data = np.random.default_rng(0).bytes(4500)
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(data)
    other.write_bytes(data)
    assert content_digest(file) == content_digest(other)
    for at in (0, 999, 1000, 4499):
        changed = bytearray(data)
        changed[at] ^= 1
        other.write_bytes(changed)
        assert content_digest(file) != content_digest(other)
    assert digest_of_files([file, other], tmp_path) != digest_of_files([other, file], tmp_path)


def test_a_digest_is_remembered_for_an_unchanged_file(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    os.utime(file, (1000, 1000))
    first = digest_of_files([file], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("fdspec.models.content_digest.content_digest", refuse)
        assert digest_of_files([file], tmp_path) == first
    file.write_bytes(b"two")
    os.utime(file, (1001, 1001))
    assert digest_of_files([file], tmp_path) != first


def test_a_digest_of_a_file_that_just_changed_is_not_remembered(tmp_path):
    file = tmp_path / "file"
    for content in (b"one", b"two"):
        file.write_bytes(content)
        now_s = time.time()
        os.utime(file, (now_s, now_s))
        digest_of_files([file], tmp_path / "memo")
        assert not list((tmp_path / "memo").glob("*"))


def test_the_layout_has_a_name_that_every_level_shares():
    usual = isa()
    try:
        names = set()
        for level in supported_isas():
            set_isa(level)
            names.add(packed_layout_fingerprint())
    finally:
        set_isa(usual)
    assert len(names) == 1


def test_arrays_of_a_file_cannot_be_written(tmp_path):
    writer = PackedFileWriter(tmp_path / "file")
    values = np.arange(6 * 40, dtype=np.float32).reshape(6, 40)
    matrix = quantize_weight(values, WeightFormat.parse("wint8_g32"))
    written = [writer.add_matrix("m", matrix).data, writer.add_vector("v", values[0])]
    writer.finish()
    writer.close()
    file = PackedFile(tmp_path / "file")
    read = [file.matrix("m", (6, 40)).data, file.vector("v", 40)]
    for array, expected in zip(written + read, [matrix.data, values[0]] * 2, strict=True):
        np.testing.assert_array_equal(array, expected)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(DamagedFile, match="no vector 'v' of 41 values"):
        file.vector("v", 41)
    with pytest.raises(DamagedFile, match="no vector 'm'"):
        file.vector("m", 60)
    with pytest.raises(FileExistsError):
        PackedFileWriter(tmp_path / "file")


def test_the_folder_follows_the_xdg_variable(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache_folder() == Path("/somewhere/fdspec/weights")
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert user_cache_folder() == Path.home() / ".cache/fdspec/weights"
