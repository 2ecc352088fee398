# SPDX-License-Identifier: Apache-2.0
"""Which texts stay, under which salt, and that a snapshot brings them back."""

import numpy as np
import pytest

from fdspec.spec_decode.snapshot import SnapshotError, read_snapshot, write_snapshot
from fdspec.spec_decode.text_cache import StoredText, TextCache


def text(*tokens, salt="", num_prompt=0):
    return StoredText(salt, num_prompt, np.array(tokens, np.int32))


def cache_of(*texts, max_texts=None, max_bytes=2**20):
    cache = TextCache(max_depth=8, max_texts=max_texts, max_bytes=max_bytes)
    for stored in texts:
        cache.put(stored)
        cache.check()
    return cache


def kept(cache):
    return [stored.tokens.tolist() for stored in cache.texts()]


def follow(cache, *tokens, salt=""):
    """What is drafted for a new text."""
    new = cache.begin(salt)
    cache.follow(new, np.array(tokens, np.int32))
    draft = cache.tree(new).draft_chain(new.number, 3, factor=9.0, min_probability=0.1)
    cache.finish(new)
    return draft.tokens.tolist()


def test_the_oldest_leave_when_there_are_too_many():
    cache = cache_of(text(1, 2, 3), text(4, 5, 6), text(7, 8, 9), max_texts=2)
    assert kept(cache) == [[4, 5, 6], [7, 8, 9]]
    assert follow(cache, 1) == []


def test_bytes_are_bounded():
    source = np.random.default_rng(0)
    cache = TextCache(max_depth=24, max_texts=None, max_bytes=200_000)
    for index in range(100):
        cache.put(text(*source.integers(0, 1000, 300), salt=str(index % 3)))
        assert cache.num_bytes < 200_000 + 300 * 2 * 80 + 3000
    assert 0 < cache.num_finished < 20
    cache.check()


def test_a_long_text_leaves_in_portions():
    source = np.random.default_rng(0)
    long, short = source.integers(0, 9, 30_000), source.integers(0, 9, 10)
    cache = cache_of(text(*long), max_texts=1)
    for _ in range(10):
        cache.put(text(*short))
    cache.check()
    assert kept(cache) == [short.tolist()]
    assert cache.num_bytes < 5_000


def test_one_tenant_never_sees_what_another_wrote():
    cache = cache_of(text(1, 2, 3, 4, salt="a"), text(1, 2, 7, salt="b"))
    assert follow(cache, 1, 2, salt="a") == [3, 4]
    assert follow(cache, 1, 2, salt="b") == [7]
    assert follow(cache, 1, 2) == follow(cache, 1, 2, salt="c") == []


def test_a_salt_without_texts_leaves_nothing_behind():
    cache = cache_of(text(1, 2, salt="a"), text(3, 4, salt="b"), max_texts=1)
    cache.check()
    assert follow(cache, 1, salt="a") == []
    assert kept(cache) == [[1]]


@pytest.fixture
def snapshot(tmp_path):
    path = tmp_path / "texts"
    texts = [text(1, 2, 3, salt="a", num_prompt=2), text(9, salt="ü"), text()]
    write_snapshot(path, texts, vocab_size=10)
    return path


def test_a_snapshot_brings_every_text_back(snapshot):
    texts = read_snapshot(snapshot, 10)
    assert [(s, n, t.tolist()) for s, n, t in texts] == [
        ("a", 2, [1, 2, 3]),
        ("ü", 0, [9]),
        ("", 0, []),
    ]
    assert snapshot.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in snapshot.parent.iterdir()] == ["texts"]


def test_a_cache_is_restored_in_its_order(snapshot):
    cache = cache_of(*read_snapshot(snapshot, 10))
    assert kept(cache) == [[1, 2, 3], [9], []]
    write_snapshot(snapshot, cache.texts(), vocab_size=10)
    assert kept(cache_of(*read_snapshot(snapshot, 10))) == kept(cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "not a snapshot"),
        (lambda data: b"X" + data[1:], "not a snapshot"),
        (lambda data: data[:8] + b"\x09" + data[9:], "version 9, this fdspec reads version 1"),
        (lambda data: data[:-1], "checksum"),
        (lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:], "checksum"),
    ],
)
def test_a_damaged_snapshot_is_refused(snapshot, change, message):
    snapshot.write_bytes(change(snapshot.read_bytes()))
    with pytest.raises(SnapshotError, match=message):
        read_snapshot(snapshot, 10)


def test_a_snapshot_of_another_model_is_refused(snapshot):
    with pytest.raises(SnapshotError, match="its model has 10 tokens, this one 11"):
        read_snapshot(snapshot, 11)
    write_snapshot(snapshot, [text(10)], vocab_size=10)
    with pytest.raises(SnapshotError, match="outside the vocabulary"):
        read_snapshot(snapshot, 10)
