# SPDX-License-Identifier: Apache-2.0
"""Reads server-sent events strictly, so that the tests see what is on the wire."""

import json
from collections.abc import Iterable
from typing import Any

import httpx

DONE = "[DONE]"


def read_events(lines: Iterable[str]) -> list[Any]:
    """Payloads of a stream's events; every event is one `data:` line and a blank one."""
    events: list[Any] = []
    expects_blank = False
    for line in lines:
        if expects_blank:
            assert line == ""
            expects_blank = False
            continue
        assert line.startswith("data: "), line
        payload = line.removeprefix("data: ")
        events.append(payload if payload == DONE else json.loads(payload))
        expects_blank = True
    assert not expects_blank
    return events


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """All events of a streaming request that starts well, but for the last one, [DONE]."""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        events = read_events(response.iter_lines())
    assert events[-1] == DONE
    assert DONE not in events[:-1]
    return events[:-1]


def joined_text(events: Iterable[Any], index: int = 0) -> str:
    """Text of one choice from the chunks of either endpoint."""
    text = ""
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text
