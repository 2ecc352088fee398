# SPDX-License-Identifier: Apache-2.0
"""A handoff between two real processes: the same bytes, the right refusals, nothing left over."""

from __future__ import annotations

import base64
import os
import signal
import time
from pathlib import Path

import pytest
import zmq

from fdspec.transfer import (
    ClientKeys,
    HandoffSink,
    LayoutMismatch,
    PullLimits,
    PullResult,
    SinkOptions,
    TransportOptions,
)
from fdspec.transfer.offer import encode_offer
from tests.transfer.worlds import (
    Process,
    SourceProcess,
    block_bytes,
    cache_of,
    fill,
    layout_of,
    open_files,
    sink_options,
    until,
)

TRANSPORTS = ("shm", "zmq-tcp")
BLOCKS = [9, 3, 4, 5, 0]
# What waits for nobody that is gone must not fail on a busy machine.
PATIENT = PullLimits(connect_s=30.0, silence_s=30.0, ask_s=0.05)
IMPATIENT = PullLimits(silence_s=2.0, ask_s=0.05, read_s=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kv")
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="module")
def sources(folder):
    """Sources that outlive a test, by their options."""
    running: dict[str, SourceProcess] = {}
    yield running
    for source in running.values():
        source.close()


@pytest.fixture
def shared(folder, sources):
    """A source that many tests use; it is as after its start."""

    def source(**options):
        name = repr(options)
        if name not in sources:
            sources[name] = SourceProcess(folder, **options)
        sources[name].ask("reset")
        return sources[name]

    return source


@pytest.fixture
def start(folder):
    """Starts sources and sinks, and ends them."""
    opened: list[SourceProcess | HandoffSink] = []

    def source(**options):
        process = SourceProcess(folder, **options)
        opened.append(process)
        return process

    def sink(*transports, dtype="bfloat16", num_blocks=11, **options):
        cache = cache_of(dtype, num_blocks)
        options.setdefault("limits", PATIENT)
        chosen = sink_options(folder, *transports, **options)
        opened.append(HandoffSink(cache.memory(), layout_of(cache), chosen))
        return opened[-1], cache

    yield source, sink
    for thing in opened[::-1]:
        thing.close()


def result_of(sink):
    return until(sink.poll)[0]


def original(dtype="bfloat16", num_blocks=16, seed=1):
    cache = cache_of(dtype, num_blocks)
    fill(cache, seed)
    return cache


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_bytes_arrive_and_only_there(shared, start, transport, dtype):
    source = shared(dtype=dtype)
    sink, cache = start[1](transport, dtype=dtype)
    theirs, before = original(dtype), cache.memory().arena.copy()
    offer = source.offer(BLOCKS)
    own = [1, 2, 10, 0, 7]
    sink.start(offer, own)
    result = result_of(sink)
    assert (result.outcome, result.reason, result.is_quiet) == ("loaded", "", True)
    assert result.transport == transport
    assert result.num_bytes == 5 * cache.layout.block_bytes
    assert result.completion == offer.completion
    assert (result.completion.first_token, result.completion.drafter_state) == (7, b"state")
    for mine, other in zip(own, BLOCKS, strict=True):
        assert block_bytes(cache, mine) == block_bytes(theirs, other)
    untouched = cache_of(dtype, 11)
    untouched.memory().arena[:] = before
    for mine in set(range(11)) - set(own):
        assert block_bytes(cache, mine) == block_bytes(untouched, mine)
    until(lambda: source.ask("state")["done"] == 1)
    assert source.ask("state")["freed"] == [BLOCKS]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_only_missing_blocks_are_pulled(shared, start, transport):
    source = shared()
    sink, cache = start[1](transport)
    sink.start(source.offer(BLOCKS), [1, 2, 3, 4, 5], num_present=3)
    result = result_of(sink)
    assert (result.outcome, result.num_bytes) == ("loaded", 2 * cache.layout.block_bytes)
    assert not any(any(plane) for plane in block_bytes(cache, 3))
    assert block_bytes(cache, 4) == block_bytes(original(), 5)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_layers_are_pulled_while_the_prompt_is_computed(shared, start, transport):
    source = shared()
    sink, cache = start[1](transport)
    offer = source.offer(BLOCKS, is_complete=False)
    assert offer.completion is None
    sink.start(offer, [1, 2, 3, 4, 5])
    theirs = original()

    def arrived(own, layer):
        pairs = [(cache.layers[layer][i][own], theirs.layers[layer][i]) for i in (0, 1)]
        return all((mine == other[BLOCKS[own - 1]]).all() for mine, other in pairs)

    source.ask("advance", request_id="r", num_blocks=2)
    until(lambda: all(arrived(own, layer) for own in (1, 2) for layer in range(3)))
    # The counter still shows the end of the step before.
    source.ask("count", value=3)
    source.ask("computing", request_id="r", num_blocks=5)
    assert not cache.layers[0].key[3].any()
    source.ask("count", value=1)
    until(lambda: arrived(5, 0))
    assert not cache.layers[1].key[3].any()
    source.ask("count", value=3)
    until(lambda: arrived(5, 2))
    assert sink.poll() == []
    source.ask("advance", request_id="r", num_blocks=5)
    assert source.ask("complete", request_id="r")
    result = result_of(sink)
    assert (result.outcome, result.completion.first_token) == ("loaded", 7)


def test_the_differing_field_is_named_before_any_byte(shared, start):
    offer = shared().offer(BLOCKS)
    cache = cache_of("bfloat16", 11)
    for field, value in {"model": "other", "block_size": 8, "quantization": "wint8"}.items():
        layout = layout_of(cache, **{field: value})
        sink = HandoffSink(cache.memory(), layout, sink_options(Path("/nowhere")))
        with pytest.raises(LayoutMismatch, match=f"{field} is {value!r} here but") as caught:
            sink.start(offer, [1, 2, 3, 4, 5])
        assert caught.value.field == field
        assert sink.num_pulling == 0
        sink.close()
    assert not cache.memory().arena.any()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_damaged_bytes_are_noticed(shared, start, transport):
    source = shared()
    sink, _ = start[1](transport)
    offer = source.offer(BLOCKS)
    source.ask("refill", seed=2)
    sink.start(offer, [1, 2, 3, 4, 5])
    result = result_of(sink)
    assert (result.outcome, result.completion) == ("recompute", None)
    assert result.reason == "block 0 of layer 0 is damaged"
    until(lambda: source.ask("state")["aborted"] == 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_recycled_blocks_are_noticed_without_checksums(shared, start, transport):
    source = shared(checksums=False)
    sink, _ = start[1](transport)
    offer = source.offer(BLOCKS)
    source.ask("withdraw", request_id="r")
    # The same sequence once more, in the same blocks with other contents.
    source.ask("refill", seed=2)
    again = source.offer(BLOCKS)
    assert again.ref.generations == tuple(g + 1 for g in offer.ref.generations)
    sink.start(offer, [1, 2, 3, 4, 5])
    assert result_of(sink).reason == "the source does not hold the blocks any more"
    assert source.ask("state")["open"] == 1
    sink.start(again, [1, 2, 3, 4, 5])
    assert result_of(sink).outcome == "loaded"


def test_the_next_transport_is_tried_when_one_fails(start, tmp_path):
    tmp_path.chmod(0o700)
    source = SourceProcess(tmp_path)
    sink, cache = start[1]("shm", "zmq-tcp")
    for path in tmp_path.glob("*.sock"):
        path.unlink()
    sink.start(source.offer(BLOCKS), [1, 2, 3, 4, 5])
    result = result_of(sink)
    source.close()
    assert (result.outcome, result.transport) == ("loaded", "zmq-tcp")
    assert block_bytes(cache, 1) == block_bytes(original(), 9)


def test_what_is_not_shared_is_recomputed(shared, start):
    source = shared(transports=["zmq-tcp"])
    sink, _ = start[1]("shm")
    sink.start(source.offer(BLOCKS), [1, 2, 3, 4, 5])
    result = result_of(sink)
    assert result.outcome == "recompute"
    assert "no transport is shared" in result.reason


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_source_killed(start, transport):
    """Before a pull, in the middle of one, and after it."""
    source = start[0]()
    sink, cache = start[1](transport)
    loaded, waiting, late = (
        source.offer([n, n + 1], request_id=str(n), is_complete=n != 4) for n in (0, 4, 8)
    )
    sink.start(loaded, [0, 1])
    assert result_of(sink).outcome == "loaded"
    sink.start(waiting, [2, 3])
    os.kill(source.child.pid, signal.SIGKILL)
    result = result_of(sink)
    assert (result.outcome, result.is_quiet) == ("recompute", True)
    sink.start(late, [4, 5])
    assert result_of(sink).outcome == "recompute"
    # What was loaded stays.
    assert block_bytes(cache, 0) == block_bytes(original(), 0)
    other = start[0]()
    sink.start(other.offer([0, 1]), [2, 3])
    assert result_of(sink).outcome == "loaded"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_source_stopped_and_continued(start, transport):
    source = start[0](lease_s=0.5, renew_s=0.5)
    sink, _ = start[1](transport, num_pullers=1, limits=IMPATIENT)
    offers = [source.offer([n, n + 1], request_id=str(n)) for n in (0, 4)]
    sink.start(offers[0], [0, 1])
    assert result_of(sink).outcome == "loaded"
    os.kill(source.child.pid, signal.SIGSTOP)
    sink.start(offers[1], [2, 3])
    result = result_of(sink)
    assert (result.outcome, result.is_quiet) == ("recompute", True)
    assert any(reason in result.reason for reason in ("no answer for 2 s", "has ended"))
    os.kill(source.child.pid, signal.SIGCONT)
    # The call that gave the blocks back was waiting, or the lease runs out.
    until(lambda: source.ask("state")["open"] == 0)
    assert len(source.ask("state")["freed"]) == 2


@pytest.mark.parametrize("verb", ["hold", "start"])
def test_blocks_come_back_when_the_reader_dies(start, folder, verb):
    """Before it has room for the request, and while it waits for the prompt."""
    source = start[0](lease_s=1.0, renew_s=1.0)
    reader = Process("sink_process", str(folder))
    offer = source.offer(BLOCKS, is_complete=verb == "hold")
    try:
        reader.ask(verb, offer=base64.b64encode(encode_offer(offer)).decode())
        if verb == "hold":
            # It renews; without that the lease would be over.
            time.sleep(1.5)
        assert source.ask("state")["open"] == 1
    finally:
        reader.close()
    if verb == "start":
        assert source.ask("complete", request_id="r")
    until(lambda: source.ask("state")["expired"] == 1)
    assert source.ask("state")["freed"] == [BLOCKS]


def test_abort_gives_blocks_back_on_both_sides(shared, start):
    source = shared()
    sink, _ = start[1]("shm")
    sink.start(source.offer(BLOCKS, is_complete=False), [1, 2, 3, 4, 5])
    sink.abort(("r", 0, 0))
    sink.abort(("unknown", 0, 0))
    result = result_of(sink)
    assert (result.outcome, result.is_quiet) == ("aborted", True)
    until(lambda: source.ask("state")["aborted"] == 1)
    assert not source.ask("complete", request_id="r")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_at_once_and_no_file_left_open(shared, start, transport):
    source = shared()
    sink, cache = start[1](transport)
    in_shm = set(os.listdir("/dev/shm"))
    # Both threads of the sink have work that only they can do, and the leases are renewed.
    for n in (0, 1):
        sink.start(source.offer([n], request_id=str(n), is_complete=False), [n])
    until(lambda: sink._leases._peers)
    for n in (1, 0):
        assert source.ask("complete", request_id=str(n))
        result = result_of(sink)
        assert (result.key, result.outcome, result.reason) == ((str(n), 0, 0), "loaded", "")
    before = open_files(), source.ask("threads")
    for turn in range(8):
        pairs = {f"{turn}-{n}": [2 * n, 2 * n + 1] for n in range(4)}
        for request_id, blocks in pairs.items():
            sink.start(source.offer(blocks, request_id=request_id), blocks)
        results: list[PullResult] = []
        until(lambda found=results: found.extend(sink.poll()) or len(found) == 4)
        assert {r.outcome for r in results} == {"loaded"}
    assert (open_files(), source.ask("threads")) == before
    assert all(block_bytes(cache, b) == block_bytes(original(), b) for b in range(8))
    until(lambda: source.ask("state")["open"] == 0)
    state = source.ask("state")
    assert (state["done"], len(state["freed"])) == (34, 34)
    assert set(os.listdir("/dev/shm")) <= in_shm


def test_restarted_sources_leave_no_connection_open(start):
    sink, _ = start[1]("shm", "zmq-tcp", num_pullers=1)
    before = open_files()
    for _ in range(2):
        source = start[0]()
        sink.start(source.offer([0, 1]), [0, 1])
        assert result_of(sink).outcome == "loaded"
        source.close()
    until(lambda: open_files() == before)


@pytest.fixture
def keys():
    names = ("server", "client", "stranger")
    return {name: zmq.curve_keypair() for name in names}


def test_keys(start, folder, keys):
    allowed = [keys["client"][0].decode()]
    public, secret = (key.decode() for key in keys["server"])
    source = start[0](keys={"public": public, "secret": secret, "allowed": allowed})
    outcomes = {}
    for name in ("client", "stranger", None):
        client = ClientKeys(*keys[name]) if name else None
        options = SinkOptions(
            TransportOptions(folder, client_keys=client), transports=("zmq-tcp",), limits=PATIENT
        )
        cache = cache_of("bfloat16", 11)
        sink = HandoffSink(cache.memory(), layout_of(cache), options)
        sink.start(source.offer(BLOCKS, request_id=str(name)), [1, 2, 3, 4, 5])
        outcomes[name] = result_of(sink)
        sink.close()
    assert outcomes["client"].outcome == "loaded"
    assert "does not accept our keys" in outcomes["stranger"].reason
    assert "wants CURVE keys, and there are none here" in outcomes[None].reason
