# SPDX-License-Identifier: Apache-2.0
"""Frames come out as they went in, whatever pieces the socket makes of them."""

import socket
import struct
import threading

import pytest

from fdspec.scheduler.topic.framed_socket import FramedSocket


@pytest.fixture
def pair():
    """A framed socket, and the bare other end."""
    framed, bare = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    connection = FramedSocket(framed)
    yield connection, bare
    connection.close()
    bare.close()


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 7, 1000])
def test_frames_in_pieces(pair, piece):
    connection, bare = pair
    payloads = [b"a", b"", b"bcd" * 5, b"\x00" * 9]
    data = b"".join(map(frame, payloads))
    received = []
    for start in range(0, len(data), piece):
        bare.sendall(data[start : start + piece])
        received += connection.receive()
    assert received == payloads
    assert connection.receive() == []


def test_what_does_not_fit_is_kept_in_order(pair):
    connection, bare = pair
    payloads = [bytes([index]) * 50_000 for index in range(40)]
    for payload in payloads:
        connection.send(payload)
    assert connection.has_unsent
    expected = b"".join(map(frame, payloads))
    received = b""
    while len(received) < len(expected):
        received += bare.recv(1_000_000)
        connection.flush()
    assert received == expected
    assert not connection.has_unsent


def test_whole_frames_before_the_end_are_received(pair):
    connection, bare = pair
    bare.sendall(frame(b"last") + frame(b"half")[:-1])
    bare.close()
    assert connection.receive() == [b"last"]
    with pytest.raises(ConnectionError, match="closed the connection"):
        connection.receive()


def test_sending_to_a_peer_that_has_gone(pair):
    connection, bare = pair
    bare.close()
    with pytest.raises(ConnectionError):
        connection.send(b"x")


def test_close_delivers_what_is_kept(pair):
    connection, bare = pair
    bare.settimeout(10)
    payload = b"x" * 1_000_000
    connection.send(payload)
    assert connection.has_unsent
    closing = threading.Thread(target=connection.close, args=(10.0,))
    closing.start()
    received = b""
    while piece := bare.recv(1_000_000):
        received += piece
    closing.join()
    assert received == frame(payload)
