# SPDX-License-Identifier: Apache-2.0
"""JSON to structs: what is accepted, and how precisely a mistake is named."""

import msgspec
import pytest

from fdspec.entrypoints.openai.body import parse_body
from fdspec.entrypoints.openai.errors import ApiError
from fdspec.entrypoints.openai.protocol import (
    IGNORED_FIELDS,
    UNAVAILABLE_FIELDS,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    PauseRequest,
)


def parse_error(data, kind=CompletionRequest):
    with pytest.raises(ApiError) as caught:
        parse_body(data, kind)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"prompt": "a",}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a"} x',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_not_json(data):
    error = parse_error(data)
    assert (error.code, error.param) == ("invalid_json", None)


def test_half_a_character_is_named():
    assert "surrogate" in parse_error(b'{"prompt": "\\ud800 a"}').message
    assert "surrogate" not in parse_error(b'{"temperature": NaN}').message


def test_allowed_values_are_listed():
    error = parse_error(b'{"mode": "stop"}', PauseRequest)
    assert error.param == "mode"
    assert error.message == "mode: invalid enum value 'stop'; allowed: 'wait', 'abort'"


def test_another_way_is_shown():
    assert "echo and logprobs" in parse_error(b'{"prompt_logprobs": 1}').message


@pytest.mark.parametrize("data", [b"[]", b'"a"', b"1", b"null", b"true"])
def test_not_an_object(data):
    assert parse_error(data).code == "invalid_type"


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        (b'{"temperature": "hot"}', "temperature", "temperature: expected float, got str"),
        (b'{"n": 1.5}', "n", "n: expected int, got float"),
        (b'{"n": true}', "n", "n: expected int, got bool"),
        (b'{"stop": [1]}', "stop[0]", "stop[0]: expected str, got int"),
        (b'{"stop": 1}', "stop", "stop: expected str | array, got int"),
        (b'{"prompt": [1.5]}', "prompt[0]", "prompt[0]: expected int | str | array, got float"),
        (b'{"prompt": [[1, "a"]]}', "prompt[0][1]", "prompt[0][1]: expected int, got str"),
        (b'{"logit_bias": {"1": "x"}}', "logit_bias[...]", "expected float, got str"),
        (b'{"stream_options": {"include_usage": 1}}', "stream_options.include_usage", "bool"),
    ],
)
def test_wrong_types(data, param, message):
    error = parse_error(data)
    assert error.param == param
    assert message in error.message
    assert error.code == "invalid_type"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b'{"temperature": 1e999}', "temperature"),
        (b'{"prompt": "1e999", "seed": -1e400}', "seed"),
        (b'{"logit_bias": {"5": 1, "7": 1e999}}', "logit_bias.7"),
        (b'{"prompt": [1, 2, 1e999]}', "prompt[2]"),
        (
            b'{"speculative": {"num_speculative_tokens": 1e999}}',
            "speculative.num_speculative_tokens",
        ),
    ],
)
def test_numbers_that_no_float_holds(data, param):
    error = parse_error(data)
    assert (error.param, error.code) == (param, "invalid_value")
    assert error.message == f"{param}: the number is too large"


@pytest.mark.parametrize("name", ["n", "temperature"])
def test_integers_of_thousands_of_digits(name):
    error = parse_error(b'{"%s": -%s}' % (name.encode(), b"9" * 5000))
    assert (error.param, error.message) == (name, f"{name}: the number is too large")


@pytest.mark.parametrize(
    ("data", "param", "hint"),
    [
        (b'{"stream_options": {"include_usages": true}}', "include_usages", "mean include_usage?"),
        (b'{"speculative": {"enable": false}}', "enable", "did you mean enabled?"),
        (b'{"speculative": {"k": 1}}', "k", "known fields: enabled, "),
    ],
)
def test_unknown_fields_of_options(data, param, hint):
    error = parse_error(data)
    assert error.param.partition(".")[2] == param
    assert error.code == "unknown_parameter"
    assert hint in error.message


def test_missing_field():
    error = parse_error(b"{}", DetokenizeRequest)
    assert (error.param, error.code) == ("tokens", "missing_required_parameter")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temperatures", "did you mean temperature?"),
        ("max_token", "did you mean max_tokens?"),
        ("zzz", "unrecognized request field: zzz"),
    ],
)
def test_unknown_fields_name_the_nearest(name, hint):
    error = parse_error(msgspec.json.encode({"prompt": "a", name: 1}))
    assert (error.param, error.code) == (name, "unknown_parameter")
    assert hint in error.message


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_fields_of_absent_features(kind):
    for name, harmless in UNAVAILABLE_FIELDS.items():
        error = parse_error(msgspec.json.encode({name: {"type": "surprise"}}), kind)
        assert (error.param, error.code) == (name, "unsupported_parameter")
        for value in (*harmless, None):
            parse_body(msgspec.json.encode({name: value}), kind)


def test_fields_without_effect():
    parse_body(msgspec.json.encode(dict.fromkeys(IGNORED_FIELDS, "x")), ChatCompletionRequest)


def test_null_is_absent():
    names = CompletionRequest.__struct_fields__
    parsed = parse_body(msgspec.json.encode(dict.fromkeys(names)), CompletionRequest)
    assert parsed == CompletionRequest()


def test_integers_are_numbers():
    assert parse_body(b'{"temperature": 1}', CompletionRequest).temperature == 1.0
