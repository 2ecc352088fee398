# SPDX-License-Identifier: Apache-2.0
"""What reaches the engine: every field's way into SamplingParams, defaults, keys and lengths."""

import pytest

from fdspec.core import SamplingParams
from tests.entrypoints.conftest import READY

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def submitted(server, http):
    """The commands that a request body turns into."""

    def submit(body, path=COMPLETIONS):
        server.engine.submitted.clear()
        full = {**(HI if path == CHAT else {"prompt": "hi"}), **body}
        response = http.post(path, json=full)
        assert response.status_code == 200, response.text
        return list(server.engine.submitted)

    return submit


def test_every_sampling_field(submitted):
    body = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 2**63 - 1,
        "n": 2,
        "max_tokens": 20,
        "min_tokens": 2,
        "stop": ["x", "y"],
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": -100, "6": 1.5},
        "bad_words_token_ids": [9, [10, 11]],
        "logprobs": 3,
        "echo": True,
        "speculative": {"num_speculative_tokens": 2},
        "priority": -3,
        "user": "somebody",
    }
    (command,) = submitted(body)
    assert command.params == SamplingParams(
        max_tokens=20,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=2**63 - 1,
        n=2,
        stop=("x", "y"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        include_stop_str_in_output=True,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias=((5, -100.0), (6, 1.5)),
        bad_words_token_ids=((9,), (10, 11)),
        logprobs=3,
        prompt_logprobs=3,
        max_draft_tokens=2,
    )
    assert command.priority == -3
    assert command.user == "somebody"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_defaults(submitted, path):
    (command,) = submitted({}, path)
    params = command.params
    room = READY.max_model_len - len(command.prompt)
    expected = SamplingParams(max_tokens=room if path == CHAT else 16, seed=params.seed)
    assert params == expected
    assert params.temperature == 1.0


def test_fresh_keys(submitted):
    """Requests without a seed never share their noise; prompts of one request neither."""
    commands = submitted({"prompt": ["a", "b", "c"]}) + submitted({})
    seeds = {command.params.seed for command in commands}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert {command.params.seed for command in submitted({"prompt": ["a", "b"], "seed": 7})} == {7}
    assert len({command.request_id for command in commands}) == 4


def test_lengths(submitted):
    assert submitted({"max_completion_tokens": 9}, CHAT)[0].params.max_tokens == 9
    assert submitted({"max_tokens": 8, "max_completion_tokens": 8}, CHAT)[0].params.max_tokens == 8
    assert submitted({"max_tokens": None})[0].params.max_tokens == 16
    assert submitted({"min_tokens": 30})[0].params.max_tokens == 30
    long, short = submitted({"prompt": [[1] * 9, [1]], "max_tokens": 503})
    assert long.params.max_tokens == short.params.max_tokens == 503


def test_spellings_of_everything(submitted):
    assert submitted({"top_k": -1})[0].params.top_k == 0
    assert submitted({"top_k": 10**30})[0].params.top_k == READY.vocab_size
    assert submitted({"stop": "x"})[0].params.stop == ("x",)
    assert submitted({"logprobs": True}, CHAT)[0].params.logprobs == 0
    assert submitted({"logprobs": False}, CHAT)[0].params.logprobs is None
    assert submitted({"logprobs": True, "top_logprobs": 5}, CHAT)[0].params.logprobs == 5


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, None),
        ({"enabled": True}, None),
        ({"enabled": False}, 0),
        ({"enabled": False, "num_speculative_tokens": 3}, 0),
        ({"num_speculative_tokens": 0}, 0),
        ({"method": "off"}, 0),
        ({"method": "naive", "num_speculative_tokens": 3}, 0),
        ({"method": "fake", "num_speculative_tokens": 3}, 3),
        ({"num_speculative_tokens": 3}, 3),
        ({"num_speculative_tokens": 10**30}, READY.num_speculative_tokens),
        (None, None),
    ],
)
def test_speculation_can_only_be_lowered(submitted, options, limit):
    assert submitted({"speculative": options})[0].params.max_draft_tokens == limit


def test_a_method_of_the_server_may_be_chosen(submitted):
    for method, chosen in ((None, None), ("fake", "fake"), ("hybrid", "hybrid"), ("off", None)):
        (command,) = submitted({"speculative": {"method": method}})
        assert command.params.draft_method == chosen


def test_a_prediction_travels_as_tokens(server, submitted):
    def encode(text):
        return tuple(server.tokenizer.encode(text, add_special_tokens=False))

    parts = [{"type": "text", "text": "hello "}, "world"]
    for content, text in (("hello", "hello"), (parts, "hello world"), ("", ""), ([], "")):
        for path in (COMPLETIONS, CHAT):
            prediction = {"type": "content", "content": content}
            (command,) = submitted({"prediction": prediction}, path)
            assert command.params.prediction == encode(text)
    assert submitted({"prediction": None})[0].params.prediction == ()


def test_bad_words_start_a_text_or_follow_a_space(server, submitted):
    def encode(text):
        return tuple(server.tokenizer.encode(text, add_special_tokens=False))

    words = submitted({"bad_words": ["world", " or"]})[0].params.bad_words_token_ids
    assert words == (encode("world"), encode(" world"), encode(" or"))
    assert words[0] != words[1]
    assert submitted({"bad_words": "he"})[0].params.bad_words_token_ids[0] == encode("he")


def test_chat_template_options(server, submitted):
    def prompt(body):
        (command,) = submitted(body, CHAT)
        return server.tokenizer.decode(command.prompt, skip_special_tokens=False)

    assert prompt({}) == "<|start|>user\nhi<|end|><|start|>assistant\n"
    assert prompt({"add_generation_prompt": False}) == "<|start|>user\nhi<|end|>"
    assert prompt({"chat_template_kwargs": {"shout": True}}).endswith("assistant\n!")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]
    assert prompt({"messages": messages}).startswith(
        "<|start|>system\nbe<|end|><|start|>user\na\nb<|end|>"
    )


def test_harmless_fields(submitted):
    body = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    body |= {"response_format": {"type": "text"}, "tools": [], "suffix": ""}
    assert submitted(body)[0].params.n == 1
    assert submitted({"best_of": 2, "n": 2})[0].params.n == 2
