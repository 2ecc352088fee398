# SPDX-License-Identifier: Apache-2.0
"""rediss://: the embedded server has no TLS of its own, so something in front of it ends TLS."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from fdspec.config.broker_address import parse_address
from fdspec.scheduler.broker.connecting import connect
from fdspec.scheduler.broker.interface import BrokerUnavailable
from fdspec.scheduler.broker.values import EmitOutcome, Timing
from tests.scheduler.topic_conformance.members import Frontend, Worker
from tests.scheduler.topic_conformance.services import SERVICES, RedisService


class TlsFront:
    """Takes TLS connections on loopback and passes their bytes on to a unix socket."""

    def __init__(self, certificate: Path, key: Path, target: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain:
            outside = self._context.wrap_socket(plain, server_side=True)
            inside = socket.socket(socket.AF_UNIX)
            inside.connect(self._target)
            back = threading.Thread(target=self._copy, args=(inside, outside), daemon=True)
            back.start()
            self._copy(outside, inside)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def front():
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl, which makes the certificate, is missing")
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    certificate, key = folder / "c.pem", folder / "k.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    service = SERVICES["valkey"](folder)
    assert isinstance(service, RedisService)
    front = TlsFront(certificate, key, folder / "s")
    yield front, certificate
    front.close()
    service.stop()
    shutil.rmtree(folder)


def test_a_topic_over_tls(front):
    front, certificate = front
    url = f"rediss://127.0.0.1:{front.port}/0"
    address = parse_address(f"{url}?ssl_ca_certs={certificate}")
    frontend = Frontend(connect(address, "t", Timing()), "f")
    worker = Worker(connect(address, "t", Timing()), "w")
    frontend.submit("a")
    assert worker.emit(worker.one().ref, 0, 1, last=True) is EmitOutcome.ACCEPTED
    assert len(frontend.collect(1.0)) == 1
    # A certificate that nobody we know has signed is not believed.
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        connect(parse_address(url), "t", Timing()).stats()
    with pytest.raises(BrokerUnavailable):
        connect(parse_address(f"redis://127.0.0.1:{front.port}/0"), "t", Timing()).stats()
    frontend.broker.close()
    worker.broker.close()
