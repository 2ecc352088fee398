# SPDX-License-Identifier: Apache-2.0
"""Pause and resume: who is refused, who finishes, who is ended, and what the answers say."""

import threading

import pytest

from fdspec.entrypoints.openai.frontend import FrontendOptions
from tests.entrypoints.conftest import Server
from tests.entrypoints.waiting import wait_until

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "hi", "max_tokens": 200}


@pytest.fixture(autouse=True)
def resumed(http):
    yield
    http.post("/v1/resume")


@pytest.fixture
def slow(server):
    """Answers of a second or so."""
    server.engine.script.reply = lambda submit, choice: [97] * 200
    server.engine.script.step_s = 0.005


class Background:
    """A request in a thread of its own."""

    def __init__(self, server, path, body):
        self.response = None

        def run():
            with server.http() as http:
                self.response = http.post(path, json=body)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self):
        self._thread.join()
        return self.response


def state(http):
    return http.get("/v1/is_paused").json()


def test_a_paused_server_takes_no_generation_request(server, http):
    assert state(http) == {"is_paused": False, "num_running": 0}
    answer = http.post("/v1/pause").json()
    assert answer == {"is_paused": True, "num_running": 0, "num_finished": 0}
    for path, body in ((COMPLETIONS, BODY), ("/v1/chat/completions", {"messages": []})):
        response = http.post(path, json=body)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "paused"
        assert int(response.headers["Retry-After"]) >= 1
    for path in ("/health", "/v1/models", "/metrics"):
        assert http.get(path).status_code == 200
    assert http.post("/tokenize", json={"prompt": "a"}).status_code == 200
    assert http.post("/v1/resume").json() == {"is_paused": False, "num_running": 0}
    assert http.post(COMPLETIONS, json=BODY).status_code == 200
    assert len(server.engine.submitted) == 1


def test_running_requests_finish(server, http, slow):
    running = Background(server, COMPLETIONS, BODY)
    wait_until(lambda: server.engine.num_sequences == 1)
    answer = http.post("/v1/pause", json={"mode": "wait"}).json()
    assert answer == {"is_paused": True, "num_running": 0, "num_finished": 1}
    assert running.join().json()["choices"][0]["text"] == "a" * 200


def test_running_requests_are_ended(server, http, slow):
    whole = Background(server, COMPLETIONS, BODY)
    stream = Background(server, COMPLETIONS, {**BODY, "stream": True})
    wait_until(lambda: server.engine.num_sequences == 2)
    wait_until(lambda: all(len(s.output) > 2 for s in list(server.engine._sequences.values())))
    answer = http.post("/v1/pause", json={"mode": "abort"}).json()
    assert answer == {"is_paused": True, "num_running": 0, "num_aborted": 2}
    assert whole.join().status_code == 503
    text = stream.join().text
    assert '"code":"paused"' in text and text.endswith("data: [DONE]\n\n")
    wait_until(lambda: server.engine.num_sequences == 0)
    assert len(server.engine.aborted) == 2


def test_a_resume_ends_the_wait(server, http, slow):
    running = Background(server, COMPLETIONS, BODY)
    wait_until(lambda: server.engine.num_sequences == 1)
    pause = Background(server, "/v1/pause", {})
    wait_until(lambda: state(http)["is_paused"])
    http.post("/v1/resume")
    assert pause.join().json()["is_paused"] is False
    assert running.join().status_code == 200


@pytest.mark.parametrize("body", [{"mode": "keep"}, {"mode": 5}, {"modes": "wait"}])
def test_bad_bodies(http, body):
    response = http.post("/v1/pause", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("mode", "modes")
    assert not state(http)["is_paused"]


def test_clearing_the_cache_is_answered_with_a_count(server, http):
    for path in ("/v1/cache/clear", "/reset_prefix_cache"):
        assert http.post(path).json() == {"num_blocks": 7}
    assert http.get("/v1/cache/clear").status_code == 405


def test_control_needs_the_key():
    options = FrontendOptions(model_names=("m",), api_keys=("secret",))
    server = Server(options)
    server.start()
    try:
        with server.http() as http:
            for path in ("/v1/pause", "/v1/resume", "/v1/cache/clear"):
                assert http.post(path).status_code == 401
                headers = {"Authorization": "Bearer secret"}
                assert http.post(path, headers=headers).status_code == 200
    finally:
        server.stop()


def test_a_dead_engine_clears_nothing():
    server = Server(FrontendOptions(model_names=("m",)))
    server.start()
    try:
        with server.http() as http:
            server.engine.die("gone")
            wait_until(lambda: server.frontend.client.death is not None)
            assert http.post("/v1/cache/clear").json()["error"]["code"] == "engine_dead"
    finally:
        server.stop()
