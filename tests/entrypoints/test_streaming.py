# SPDX-License-Identifier: Apache-2.0
"""The shape of streams: usage, roles, errors in the middle, and clients that leave."""

from typing import Any

import pytest

from tests.entrypoints.sse import joined_text, stream
from tests.entrypoints.waiting import wait_until

CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "hi"}]},
)
COMPLETION: tuple[str, dict[str, Any]] = ("/v1/completions", {"prompt": "hi"})
PATHS = [CHAT, COMPLETION]


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_without_usage(server, http, path, body):
    for options in (None, {}, {"include_usage": False}):
        for event in stream(http, path, {**body, "stream_options": options}):
            assert "usage" not in event
            assert len(event["choices"]) == 1


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_usage_comes_once_and_last(server, http, path, body):
    server.engine.script.reply = server.engine.spell("abcdefghij")
    server.engine.script.step_sizes = (2,)
    options = {"stream_options": {"include_usage": True}}
    *chunks, last = stream(http, path, {**body, **options})
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    whole = http.post(path, json=body).json()
    assert last["usage"] == whole["usage"]
    assert last["usage"]["completion_tokens"] == 11


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_usage_in_every_chunk(server, http, path, body):
    server.engine.script.reply = server.engine.spell("abcdef")
    options = {"stream_options": {"continuous_usage_stats": True, "include_usage": True}}
    events = stream(http, path, {**body, **options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts[-2:] == [7, 7]
    assert counts == sorted(counts)


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_all_chunks_share_their_head(server, http, path, body):
    events = stream(http, path, body)
    heads = {(event["id"], event["created"], event["model"], event["object"]) for event in events}
    assert len(heads) == 1
    assert events[0]["object"] == ("chat.completion.chunk" if "chat" in path else "text_completion")
    assert [choice["finish_reason"] for event in events for choice in event["choices"]] == (
        [None] * (len(events) - 1) + ["stop"]
    )


def test_the_role_comes_once(server, http):
    server.engine.script.reply = server.engine.spell("abc")
    deltas = [event["choices"][0]["delta"] for event in stream(http, *CHAT)]
    assert [delta.get("role") for delta in deltas] == ["assistant", None, None, None]
    server.engine.script.reply = server.engine.spell("")
    (event,) = stream(http, *CHAT)
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_one_chunk_for_a_step(server, http):
    server.engine.script.reply = server.engine.spell("abcdefghi")
    server.engine.script.step_sizes = (4,)
    texts = [event["choices"][0]["text"] for event in stream(http, *COMPLETION)]
    assert texts == ["a", "bcde", "fghi", ""]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("streams", [False, True])
def test_error_before_the_first_byte(server, http, path, body, streams):
    server.engine.script.error = "the cache is full"
    response = http.post(path, json={**body, "stream": streams})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the cache is full"
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_error_after_the_first_chunk(server, http, path, body):
    server.engine.script.reply = server.engine.spell("abcdef")
    server.engine.script.error, server.engine.script.error_after = "the cache is full", 3
    *chunks, error = stream(http, path, body)
    assert joined_text(chunks) == "abc"
    assert error["error"]["message"] == "the cache is full"
    assert set(error["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_aborts(server, http, path, body, streams):
    server.engine.script.reply = lambda submit, choice: [97] * 400
    server.engine.script.step_s = 0.02
    body = {**body, "stream": streams, "n": 2, "max_tokens": 400}
    # The connection is closed when its client is.
    leaving = server.http()
    request = leaving.build_request("POST", path, json=body)
    if streams:
        response = leaving.send(request, stream=True)
        next(response.iter_lines())
        response.close()
    else:
        with pytest.raises(Exception, match="timed out"):
            leaving.post(path, json=body, timeout=0.3)
    leaving.close()
    wait_until(lambda: server.engine.num_sequences == 0)
    assert server.engine.aborted == [server.engine.submitted[0].request_id]
    wait_until(lambda: server.frontend.num_running == 0)
    assert server.frontend.client.num_requests == 0
    server.engine.script.step_s = 0.0
    server.engine.script.reply = server.engine.spell("ok")
    assert http.post(COMPLETION[0], json=COMPLETION[1]).json()["choices"][0]["text"] == "ok"


def test_a_client_that_leaves_while_nothing_comes(server, http):
    """The abort does not wait for the next token."""
    server.engine.script.step_s = 0.3
    server.engine.script.reply = lambda submit, choice: [97] * 100
    leaving = server.http()
    with leaving.stream("POST", COMPLETION[0], json={**COMPLETION[1], "stream": True}) as response:
        next(response.iter_lines())
    leaving.close()
    wait_until(lambda: server.frontend.num_running == 0)
    server.engine.script.step_s = 0.0
    wait_until(lambda: server.engine.aborted)
