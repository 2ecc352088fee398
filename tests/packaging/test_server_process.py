# SPDX-License-Identifier: Apache-2.0
"""ServerProcess: waits for health, tells why a server died, leaves no process behind."""

import sys
import time
from pathlib import Path

import pytest

from scripts.server_process import ServerError, ServerProcess, choose_port

# A server that answers 200 to everything and has a child that ignores being asked to stop.
STAND_IN = """
import http.server, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def start(port, code=STAND_IN):
    return ServerProcess([sys.executable, "-c", code, str(port)], Path.cwd(), port)


def is_alive(process_id):
    """True if a process exists and is not a zombie that nobody has collected."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(process_id):
    deadline = time.monotonic() + 30
    while is_alive(process_id) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process_id)


def test_server_and_its_children_end_with_the_block(capsys):
    with start(choose_port()) as server:
        server.wait_until_healthy(60)
        child = int(server.log_tail().split()[1])
        assert is_alive(child)
        parent = server.process_id
    assert wait_until_gone(parent)
    assert wait_until_gone(child)
    assert "ready after" in capsys.readouterr().out


def test_an_error_in_the_block_ends_the_server_too():
    with pytest.raises(KeyboardInterrupt), start(choose_port()) as server:
        server.wait_until_healthy(60)
        parent = server.process_id
        raise KeyboardInterrupt
    assert wait_until_gone(parent)


def test_a_server_that_dies_shows_the_end_of_its_log():
    code = "print('\\n'.join(map(str, range(100)))); raise SystemExit('no model')"
    with (
        pytest.raises(ServerError, match="the server ended while starting") as caught,
        start(choose_port(), code) as server,
    ):
        server.wait_until_healthy(60)
    lines = str(caught.value).splitlines()
    assert lines[-1] == "no model"
    assert lines[-2] == "99"
    assert "50" not in lines


def test_a_server_that_never_answers_is_given_up():
    with (
        pytest.raises(ServerError, match="not healthy after 0 s"),
        start(choose_port(), "import time; time.sleep(600)") as server,
    ):
        server.wait_until_healthy(0.3)


def test_a_taken_port_is_avoided():
    port = choose_port()
    assert port > 0
    with start(port) as server:
        server.wait_until_healthy(60)
        assert choose_port(preferred=port) != port
