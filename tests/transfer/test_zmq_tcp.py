# SPDX-License-Identifier: Apache-2.0
"""Transport zmq-tcp by itself: many small questions, none of which may be lost."""

from fdspec.transfer import Piece, Route, TransportOptions
from fdspec.transfer.offer import OfferRef
from fdspec.transfer.transports import make_transport
from tests.transfer.worlds import NUM_LAYERS, block_bytes, cache_of, fill

NUM_BLOCKS = 8
NUM_READS = 80


def test_no_answer_is_lost(tmp_path):
    theirs, ours = cache_of("float32", NUM_BLOCKS), cache_of("float32", NUM_BLOCKS)
    fill(theirs, 1)
    blocks = tuple(range(NUM_BLOCKS))
    source = make_transport("zmq-tcp", TransportOptions(tmp_path))
    sink = make_transport("zmq-tcp", TransportOptions(tmp_path))
    try:
        descriptor = source.register_pool(theirs.memory(), lambda ref: blocks)
        sink.register_pool(ours.memory(), None)
        connection = sink.connect(descriptor)
        route = Route(OfferRef("boot", "r", 0, 1, b"secret", blocks), blocks, blocks)
        pieces = [Piece(layer, block, block + 1) for layer in range(NUM_LAYERS) for block in blocks]
        for _ in range(NUM_READS):
            connection.read(route, pieces, timeout_s=20.0)
        connection.close()
        for block in blocks:
            assert block_bytes(ours, block) == block_bytes(theirs, block)
    finally:
        sink.close()
        source.close()
