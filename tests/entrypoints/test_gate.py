# SPDX-License-Identifier: Apache-2.0
"""API keys, the limit of requests at once, request ids, trusted templates."""

import contextlib
import dataclasses
import threading

import pytest

from fdspec.core import ConfigError
from fdspec.entrypoints.openai.frontend import Frontend, FrontendOptions
from tests.entrypoints.conftest import MODEL, READY, Server
from tests.entrypoints.waiting import wait_until

OPTIONS = FrontendOptions(model_names=(MODEL,))
BODY = {"prompt": "hi"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@contextlib.contextmanager
def running(**changes):
    server = Server(dataclasses.replace(OPTIONS, **changes))
    server.start()
    try:
        with server.http() as http:
            yield server, http
    finally:
        server.stop()


def test_api_keys():
    with running(api_keys=("secret", "se cret", "schlüssel")) as (server, http):
        for header in (None, "Bearer", "Bearer wrong", "Bearer secre", "secret", "Basic secret"):
            headers = {"Authorization": header} if header else {}
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/x")):
                response = http.request(method, path, headers=headers)
                assert response.status_code == 401, (header, path)
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert "secret" not in response.text
        for header in ("Bearer secret", "bearer secret", "Bearer se cret", "Bearer schlüssel"):
            raw = [(b"Authorization", header.encode())]
            response = http.post("/v1/completions", json=BODY, headers=raw)
            assert response.status_code == 200, header
        for path in ("/health", "/ping", "/version", "/metrics", "/load"):
            assert http.get(path).status_code == 200
        assert len(server.engine.submitted) == 4
        with server.openai(api_key="secret") as client:
            assert [model.id for model in client.models.list()] == [MODEL]


def test_requests_without_a_user_belong_to_their_key():
    with running(api_keys=("first", "second")) as (server, http):
        for key, fields in (("second", {}), ("second", {"user": "me"}), ("first", {"user": ""})):
            headers = {"Authorization": f"Bearer {key}"}
            http.post("/v1/completions", json={**BODY, **fields}, headers=headers)
        users = [command.user for command in server.engine.submitted]
        assert users == ["key 1", "me", "key 0"]


def test_too_many_requests():
    with running(max_concurrency=2) as (server, http):
        server.engine.script.reply = lambda submit, choice: [97] * 300
        server.engine.script.step_s = 0.01
        statuses: list[int] = []

        def ask():
            with server.http() as own:
                answer = own.post("/v1/completions", json={**BODY, "max_tokens": 300})
                statuses.append(answer.status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: http.get("/load").json()["server_load"] == 2)
        for path, body in (("/v1/completions", BODY), ("/v1/chat/completions", CHAT)):
            response = http.post(path, json=body)
            assert response.status_code == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert response.json()["error"]["code"] == "too_many_requests"
        assert http.get("/v1/models").status_code == 200
        assert http.post("/tokenize", json=BODY).status_code == 200
        server.engine.script.step_s = 0.0
        for thread in threads:
            thread.join()
        assert statuses == [200, 200]
        assert http.post("/v1/completions", json=BODY).status_code == 200


def test_request_ids(server, http):
    plain = http.post("/v1/completions", json=BODY)
    assert plain.json()["id"] == f"cmpl-{plain.headers['X-Request-Id']}"
    by_header = http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "mine"})
    assert by_header.headers["X-Request-Id"] == "mine"
    assert by_header.json()["id"] == "cmpl-mine"
    body = {**BODY, "request_id": "yours/1"}
    by_body = http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
    assert by_body.headers["X-Request-Id"] == "yours/1"
    assert by_body.json()["id"] == "cmpl-yours/1"
    bad = http.get("/v1/models", headers={"X-Request-Id": "x" * 300})
    assert len(bad.headers["X-Request-Id"]) == 32
    assert http.get("/nothing").headers["X-Request-Id"]


def test_one_public_id_twice_at_once(server, http):
    """The engine tells requests apart even if their clients do not."""
    server.engine.script.reply = lambda submit, choice: [97] * 100
    server.engine.script.step_s = 0.005
    texts: list[str] = []

    def ask():
        with server.http() as own:
            body = {**BODY, "request_id": "same", "max_tokens": 100}
            texts.append(own.post("/v1/completions", json=body).json()["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["a" * 100] * 3


def test_templates_of_trusted_clients():
    with running(trust_request_chat_template=True) as (server, http):
        template = "{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ tail }}"
        body = {**CHAT, "chat_template": template, "chat_template_kwargs": {"tail": "!"}}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        (command,) = server.engine.submitted
        text = server.tokenizer.decode(command.prompt, skip_special_tokens=False)
        assert text == "<|end|>hi!"
        for bad in ("{% if %}", "{{ messages.nothing.at.all() }}", "{{ raise_exception('no') }}"):
            response = http.post("/v1/chat/completions", json={**CHAT, "chat_template": bad})
            assert response.status_code == 400, bad


def test_a_seed_for_the_server_repeats_its_keys():
    seeds = []
    for _ in range(2):
        with running(seed=3) as (server, http):
            for _ in range(3):
                http.post("/v1/completions", json=BODY)
            seeds.append([command.params.seed for command in server.engine.submitted])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_a_tokenizer_of_another_model(server):
    client = server.frontend.client
    small = dataclasses.replace(READY, vocab_size=server.tokenizer.vocab_size - 1)
    original, client.ready = client.ready, small
    try:
        with pytest.raises(ConfigError, match="belongs to the model"):
            Frontend(client, server.tokenizer, OPTIONS)
    finally:
        client.ready = original
