# SPDX-License-Identifier: Apache-2.0
"""Any JSON at all gets an answer or a 400 that names what is wrong; never a 500."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdspec.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from tests.entrypoints.sse import read_events
from tests.entrypoints.waiting import wait_until

NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 5, 20, 128, 2**31, 2**63 - 1, 2**63, 10**30]),
    st.sampled_from([0.0, 0.5, -0.5, 1.0, 1e-7, 1e30, 1e308, 5e-324]),
)
TEXTS = st.one_of(st.sampled_from(["", "a", "12", "-1", "text"]), st.text(max_size=8))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_calls", "type", "text"]),
        st.one_of(st.sampled_from(["user", "system", "assistant"]), SCALARS),
        max_size=4,
    ),
    max_size=3,
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.lists(st.lists(SCALARS, max_size=3), max_size=3),
    st.dictionaries(TEXTS, SCALARS, max_size=3),
    MESSAGES,
)
USABLE = {"messages": [{"role": "user", "content": "hi"}]}


def bodies(kind, usable):
    """Mostly usable bodies with some fields replaced by anything."""
    names = st.sampled_from([*kind.__struct_fields__, "tools", "user", "nonsense"])
    changes = st.dictionaries(names, VALUES, max_size=4)
    return st.builds(
        lambda base, change: {**base, **change}, st.sampled_from([usable, {}]), changes
    )


def check(http, path, body):
    response = http.post(path, json=body)
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif body.get("stream"):
        *_, last, done = read_events(response.text.split("\n")[:-1])
        assert done == "[DONE]"
        assert "error" not in last, (body, last)
    else:
        assert all(choice["finish_reason"] for choice in response.json()["choices"])


def fuzz(http, path, kind, usable, num_examples):
    @settings(
        max_examples=num_examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(bodies(kind, usable))
    def run(body):
        # What JSON cannot say is not under test here.
        json.dumps(body, allow_nan=False)
        check(http, path, body)

    run()


CASES = [
    ("/v1/chat/completions", ChatCompletionRequest, USABLE),
    ("/v1/completions", CompletionRequest, {"prompt": "hi"}),
]


@pytest.mark.parametrize(("path", "kind", "usable"), CASES)
def test_any_json(server, http, path, kind, usable):
    fuzz(http, path, kind, usable, 300)
    wait_until(lambda: server.frontend.num_running == 0)


@pytest.mark.full
@pytest.mark.parametrize(("path", "kind", "usable"), CASES)
def test_any_json_at_length(server, http, path, kind, usable):
    fuzz(http, path, kind, usable, 10_000)
    wait_until(lambda: server.frontend.num_running == 0)
