# SPDX-License-Identifier: Apache-2.0
"""Bad input is a 400 that names the field; never a 500; and nobody else notices."""

import threading
from typing import Any

import pytest

from tests.entrypoints.waiting import wait_until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}

Field = str | None

COMMON: list[tuple[dict[str, Any], Field]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": 1e-60}, "top_p"),
    ({"temperature": 1e60}, "temperature"),
    ({"repetition_penalty": 1e-60}, "repetition_penalty"),
    ({"repetition_penalty": 1e60}, "repetition_penalty"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 10**30}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 512}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"min_tokens": 600}, None),
    ({"seed": -1}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop_token_ids": [999999999]}, "stop_token_ids"),
    ({"stop_token_ids": [-1], "min_tokens": 2}, "stop_token_ids"),
    ({"stop_token_ids": [300]}, "stop_token_ids"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {" 1": 1}}, "logit_bias"),
    ({"logit_bias": {"\N{ARABIC-INDIC DIGIT FIVE}": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1e9}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": " "}, "bad_words"),
    ({"bad_words_token_ids": [300]}, "bad_words_token_ids"),
    ({"bad_words_token_ids": [[]]}, "bad_words"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"speculative": {"num_speculative_tokens": -1}}, "speculative.num_speculative_tokens"),
    ({"speculative": True}, "speculative"),
    ({"priority": 2**31}, "priority"),
    ({"priority": -(2**31)}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"user": 5}, "user"),
    ({"user": "x" * 257}, "user"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"request_id": ""}, "request_id"),
    ({"request_id": "a\r\nb"}, "request_id"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"prediction": "a"}, "prediction"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "text", "content": "a"}}, "prediction.type"),
    ({"prediction": {"content": "a", "text": "b"}}, "prediction.text"),
    ({"prediction": {"content": [{"type": "image_url"}]}}, "prediction.content[0]"),
    ({"prediction": {"content": ["a", 5]}}, "prediction.content[1]"),
    ({"prediction": {"content": "a" * 10**6}}, "prediction.content"),
    ({"speculative": {"method": "suffix"}}, "speculative.method"),
    ({"speculative": {"method": 5}}, "speculative.method"),
    ({"guided_json": {}}, "guided_json"),
    ({"max_toks": 5}, "max_toks"),
    ({"prompt_token_ids": []}, "prompt_token_ids"),
    ({"prompt_token_ids": [1]}, "prompt_token_ids"),
]
CHAT_ONLY: list[tuple[dict[str, Any], Field]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 512}, "max_completion_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"echo": True}, "echo"),
]
COMPLETIONS_ONLY: list[tuple[dict[str, Any], Field]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [[1], []]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [300]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [1] * 512}, "prompt"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": ["a"] * 1000, "n": 2}, "n"),
    ({"logprobs": 99}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 99, "echo": True}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 3}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"messages": []}, "messages"),
]
CASES: list[tuple[str, dict[str, Any], Field]] = (
    [(CHAT, {**MESSAGES, **fields}, param) for fields, param in COMMON + CHAT_ONLY]
    + [(COMPLETIONS, {"prompt": "hi", **f}, param) for f, param in COMMON + COMPLETIONS_ONLY]
    + [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ]
)


def check_error(response, status=400):
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def test_every_case(server, http):
    """All of them, while a good request runs."""
    server.engine.script.reply = lambda submit, choice: [97] * 400
    server.engine.script.step_s = 0.005
    good: list[str] = []

    def run_good():
        with server.http() as client:
            answer = client.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 400})
            good.append(answer.json()["choices"][0]["text"])

    thread = threading.Thread(target=run_good)
    thread.start()
    for path, body, param in CASES:
        for streams in (False, True) if path.startswith("/v1") else (None,):
            sent = body if streams is None else {**body, "stream": streams}
            if streams and "stream_options" in body:
                continue
            error = check_error(http.post(path, json=sent))
            assert param in (None, error["param"]), (path, body, error)
    thread.join()
    assert good == ["a" * 400]
    assert len(server.engine.submitted) == 1
    wait_until(lambda: server.frontend.num_running == 0)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("content", "content_type", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b'{"temperature": NaN}', "application/json", "invalid_json"),
        (b"\xff\xfe", "application/json", "invalid_json"),
        (b"[" * 100_000, "application/json", "invalid_json"),
        (b"[]", "application/json", "invalid_type"),
        (b"", "application/json", "invalid_json"),
        (b"prompt=hi", "application/x-www-form-urlencoded", "invalid_content_type"),
        (b"{}", "text/plain", "invalid_content_type"),
    ],
)
def test_bodies_that_are_no_request(http, path, content, content_type, code):
    response = http.post(path, content=content, headers={"Content-Type": content_type})
    assert check_error(response)["code"] == code


def test_numbers_of_a_too_long_request(http):
    error = check_error(http.post(COMPLETIONS, json={"prompt": [1] * 500, "max_tokens": 13}))
    assert error["code"] == "context_length_exceeded"
    assert "500 prompt tokens + max_tokens 13 = 513 tokens" in error["message"]
    assert "512" in error["message"]
    response = http.post(COMPLETIONS, json={"prompt": [1] * 500, "max_tokens": 12})
    assert response.status_code == 200


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_a_huge_text_is_not_even_tokenised(http, monkeypatch, field):
    def encode(*_, **__):
        raise AssertionError("tokenised")

    monkeypatch.setattr("fdspec.tokenizer.Tokenizer.encode", encode)
    text = "hello " * 1_000_000
    value = text if field == "prompt" else [{"role": "user", "content": text}]
    response = http.post(COMPLETIONS if field == "prompt" else CHAT, json={field: value})
    error = check_error(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert "512" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("PUT", COMPLETIONS, 405),
        ("POST", "/v1/models", 405),
    ],
)
def test_routing_errors_have_the_same_shape(http, method, path, status):
    error = check_error(http.request(method, path), status)
    assert path in error["message"]


def test_a_body_that_is_too_large(http, monkeypatch):
    monkeypatch.setattr("fdspec.entrypoints.openai.body.MAX_BODY_BYTES", 1000)
    error = check_error(http.post(COMPLETIONS, json={"prompt": "a" * 2000}), 413)
    assert error["code"] == "body_too_large"


def test_tiny_temperatures_are_greedy(server, http):
    response = http.post(COMPLETIONS, json={"prompt": "hi", "temperature": 1e-7})
    assert response.status_code == 200
    assert server.engine.submitted[0].params.is_greedy
