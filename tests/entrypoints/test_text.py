# SPDX-License-Identifier: Apache-2.0
"""Text on the wire: streams equal whole answers; split characters; stop strings across steps."""

import pytest

from tests.entrypoints.sse import joined_text, stream

STEP_SIZES = [(1,), (2,), (5,), (1, 4, 2), (100,)]
EMOJI = "a\N{GRINNING FACE}b\N{CJK UNIFIED IDEOGRAPH-6F22}\N{FAMILY}z"


def ask(http, body, path="/v1/completions"):
    response = http.post(path, json={"prompt": "hi", **body})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def both(http, body):
    """The choice of a whole answer, and the events of the same request as a stream."""
    whole = ask(http, body)
    events = stream(http, "/v1/completions", {"prompt": "hi", **body})
    assert joined_text(events) == whole["text"]
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert events[-1]["choices"][0]["stop_reason"] == whole["stop_reason"]
    return whole, events


@pytest.mark.parametrize("sizes", STEP_SIZES)
@pytest.mark.parametrize("max_tokens", range(1, 18))
def test_characters_split_across_tokens(server, http, sizes, max_tokens):
    server.engine.script.reply = server.engine.spell(EMOJI)
    server.engine.script.step_sizes = sizes
    whole, events = both(http, {"max_tokens": max_tokens})
    for event in events[:-1]:
        assert "\N{REPLACEMENT CHARACTER}" not in event["choices"][0]["text"]
    encoded = EMOJI.encode()[:max_tokens]
    assert whole["text"] == encoded.decode("utf-8", errors="replace")


@pytest.mark.parametrize("sizes", STEP_SIZES)
@pytest.mark.parametrize("include", [False, True])
def test_stop_string_across_tokens_and_steps(server, http, sizes, include):
    server.engine.script.reply = server.engine.spell("one two STOP three STOP")
    server.engine.script.step_sizes = sizes
    body = {"stop": ["zzz", " STOP t"], "include_stop_str_in_output": include, "max_tokens": 99}
    whole, events = both(http, body)
    assert whole["text"] == ("one two STOP t" if include else "one two")
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", " STOP t")
    shown = ""
    for event in events[:-1]:
        shown += event["choices"][0]["text"]
        assert "one two".startswith(shown), "no part of the stop string, ever"


@pytest.mark.parametrize("sizes", STEP_SIZES)
def test_stop_string_inside_a_split_character(server, http, sizes):
    server.engine.script.reply = server.engine.spell(EMOJI)
    server.engine.script.step_sizes = sizes
    whole, _ = both(http, {"stop": "\N{CJK UNIFIED IDEOGRAPH-6F22}", "max_tokens": 99})
    assert whole["text"] == "a\N{GRINNING FACE}b"


@pytest.mark.parametrize("sizes", STEP_SIZES)
def test_a_stop_string_before_min_tokens_is_text(server, http, sizes):
    server.engine.script.reply = server.engine.spell("a.b.c.d")
    server.engine.script.step_sizes = sizes
    whole, _ = both(http, {"stop": ".", "min_tokens": 3, "max_tokens": 99})
    assert whole["text"] == "a.b"
    assert whole["stop_reason"] == "."


def test_almost_a_stop_string_is_shown_at_the_end(server, http):
    server.engine.script.reply = server.engine.spell("it is almost STO")
    whole, _ = both(http, {"stop": "STOP", "max_tokens": 99})
    assert whole["text"] == "it is almost STO"
    whole, _ = both(http, {"stop": "STOP", "max_tokens": 15})
    assert whole["text"] == "it is almost ST"
    assert whole["finish_reason"] == "length"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_stop_token(server, http, include, text):
    server.engine.script.reply = server.engine.spell("abcd")
    body = {"stop_token_ids": [ord("c")], "include_stop_str_in_output": include}
    whole, _ = both(http, {**body, "return_token_ids": True})
    assert whole["text"] == text
    assert whole["stop_reason"] == ord("c")
    assert whole["token_ids"] == list(b"abc"), "the stop token was generated and is counted"


def test_end_of_sequence(server, http):
    server.engine.script.reply = server.engine.spell("ab")
    whole, _ = both(http, {"return_token_ids": True})
    eos_id = server.tokenizer.eos_ids[0]
    assert (whole["text"], whole["finish_reason"], whole["stop_reason"]) == ("ab", "stop", None)
    assert whole["token_ids"] == [*b"ab", eos_id]
    whole, _ = both(http, {"ignore_eos": True, "max_tokens": 4, "skip_special_tokens": False})
    assert (whole["text"], whole["finish_reason"]) == ("ab<|end|><|end|>", "length")


def test_special_tokens_inside_the_output(server, http):
    start_id = server.tokenizer.token_to_id("<|start|>")
    server.engine.script.reply = lambda submit, choice: [ord("a"), start_id, ord("b")]
    assert both(http, {})[0]["text"] == "ab"
    assert both(http, {"skip_special_tokens": False})[0]["text"] == "a<|start|>b"


def test_counts_agree(server, http):
    """Tokens, their ids, their logprobs and the usage, after a stop inside a step."""
    server.engine.script.reply = server.engine.spell("abcdefgh")
    server.engine.script.step_sizes = (4,)
    body = {"prompt": "hi", "stop": "f", "logprobs": 1, "return_token_ids": True}
    answer = http.post("/v1/completions", json=body).json()
    choice = answer["choices"][0]
    num = answer["usage"]["completion_tokens"]
    assert num == len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == 6
    report = answer["usage"]["speculative"]
    assert report["num_steps"] + report["num_accepted_tokens"] == num - 1
