# SPDX-License-Identifier: Apache-2.0
"""Arguments of the wrong kind say which, what they are, and what to write instead."""

from typing import Any

import numpy as np
import pytest

from fdspec import SamplingParams
from fdspec.core import InvalidParameter
from fdspec.entrypoints.offline_arguments import (
    conversation_list,
    params_list,
    prompt_list,
    token_ids,
)

HELLO = {"role": "user", "content": "Hello"}


def test_prompts_of_every_kind():
    mixed: list[Any] = ["a", [1, 2]]
    row: Any = np.array([1, 2])
    table: Any = np.array([[1, 2], [3, 4]])
    assert prompt_list("a") == ["a"]
    assert prompt_list(mixed) == mixed
    assert prompt_list([1, 2]) == [[1, 2]]
    assert prompt_list(("a",)) == ["a"]
    assert prompt_list([]) == []
    assert [list(prompt) for prompt in prompt_list(row)] == [[1, 2]]
    assert [list(prompt) for prompt in prompt_list(table)] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "prompts must be a text, a list of token ids, or a list of these, got NoneType"),
        (5, "got int 5"),
        (b"a", "got bytes"),
        ({"prompt": "a"}, "got dict {'prompt': 'a'}"),
        (["a", None], r"prompts\[1\] must be a text or a list of token ids, got NoneType None"),
        ([1.5], r"prompts\[0\] must be a text or a list of token ids, got float 1.5"),
        ([{"a": "b" * 100}], r"got dict \{'a': 'b+\.\.\.$"),
    ],
)
def test_prompts_of_no_kind(prompts, message):
    with pytest.raises(InvalidParameter, match=message) as caught:
        prompt_list(prompts)
    assert caught.value.param == "prompts"


def test_conversations_of_every_kind():
    assert conversation_list([HELLO]) == [[HELLO]]
    assert conversation_list([[HELLO], (HELLO, HELLO)]) == [[HELLO], (HELLO, HELLO)]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hello", "messages must be a conversation, such as .*, got str 'Hello'"),
        (HELLO, "got dict"),
        ([], "messages must not be empty"),
        ([[]], r"messages\[0\] must not be empty"),
        (["Hello"], r"messages\[0\] must be a list of messages, got str 'Hello'"),
        ([{"content": "Hello"}], r"messages\[0\] must be a dict with role and content, got"),
        ([[HELLO], [HELLO, 5]], r"messages\[1\]\[1\] must be a dict with role and content, got 5"),
    ],
)
def test_conversations_of_no_kind(messages, message):
    with pytest.raises(InvalidParameter, match=message) as caught:
        conversation_list(messages)
    assert caught.value.param.startswith("messages")


def test_parameters_for_all_or_each():
    one, two = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert params_list(None, 2) == [SamplingParams()] * 2
    assert params_list(one, 2) == [one, one]
    assert params_list([one, two], 2) == [one, two]
    cases: list[tuple[Any, str]] = [
        ({"max_tokens": 5}, r"sampling_params must be SamplingParams\(...\), or .*, got dict"),
        ([one], "has 1 entries for 2 prompts"),
        ([one, {"n": 2}], r"sampling_params\[1\] must be SamplingParams\(...\), got dict"),
        (0.5, "got float 0.5"),
    ]
    for wrong, message in cases:
        with pytest.raises(InvalidParameter, match=message):
            params_list(wrong, 2)


def test_token_ids():
    row: Any = np.array([1, 2])
    assert token_ids("p", row, 10) == (1, 2)
    cases: list[Any] = [[], [10], [-1], ["1"], [1.0], [True], [None]]
    for wrong in cases:
        with pytest.raises(InvalidParameter, match="p"):
            token_ids("p", wrong, 10)


def test_parameters_as_people_write_them():
    fields: dict[str, Any] = {
        "stop": "end",
        "stop_token_ids": [1, 2],
        "logit_bias": {5: -1.0},
        "bad_words_token_ids": [[1, 2], (3,)],
    }
    params = SamplingParams(**fields)
    assert params == SamplingParams(
        stop=("end",),
        stop_token_ids=(1, 2),
        logit_bias=((5, -1.0),),
        bad_words_token_ids=((1, 2), (3,)),
    )
    params.validate(vocab_size=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "5"),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("n", True),
        ("stop", 5),
        ("stop", [5]),
        ("stop", None),
        ("stop_token_ids", 5),
        ("stop_token_ids", ["5"]),
        ("logit_bias", 5),
        ("logit_bias", [5]),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: "x"}),
        ("bad_words_token_ids", [5]),
        ("bad_words_token_ids", ["a"]),
        ("ignore_eos", 1),
        ("include_stop_str_in_output", "yes"),
        ("logprobs", "5"),
        ("seed", 0.5),
    ],
)
def test_parameters_of_the_wrong_kind_or_size(name, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value}).validate(vocab_size=10)
    assert caught.value.param == name
    assert name in caught.value.message or name == "stop"
