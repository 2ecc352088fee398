# SPDX-License-Identifier: Apache-2.0
"""The stop walk ends an output at the same token, however the tokens are divided into steps."""

from dataclasses import replace
from typing import Any

import pytest

from fdspec.core import FinishReason
from fdspec.spec_decode.stop import StopWalk, Trimmed
from tests.spec_decode.plans import GREEDY, decoding

EOS = 0
WORDS = ["", "he", "llo", " wor", "ld", "x", "é", "", "ab", "ba", "a"]
BYTES = [word.encode() for word in WORDS]
BYTES[6], BYTES[7] = b"\xc3", b"\xa9"
PROMPT = (1, 2)
STOP = FinishReason.STOP


def trim(tokens, output=(), *, max_model_len=1000, **params):
    walk = StopWalk([EOS], BYTES, max_model_len)
    return walk.trim(
        tokens, decoding(PROMPT, output, params=replace(GREEDY, **{"max_tokens": 50, **params}))
    )


def walk_all(tokens, size, **params):
    """Feed tokens in runs of `size`; returns the number kept and the end."""
    output: list[int] = []
    while len(output) < len(tokens):
        run = tokens[len(output) : len(output) + size]
        kept = trim(run, tuple(output), **params)
        output += run[: kept.num_tokens]
        if kept.finish is not None:
            return len(output), kept.finish, kept.stop_reason
    return len(output), None, None


CASES: dict[str, tuple[list[int], dict[str, Any], tuple[int, Any, Any]]] = {
    "eos in the middle": ([5, 5, EOS, 5], {}, (3, STOP, None)),
    "eos ignored": ([5, 5, EOS, 5], {"ignore_eos": True}, (4, None, None)),
    "stop id": ([5, 3, 5], {"stop_token_ids": (3,)}, (2, STOP, 3)),
    "eos before stop id": ([EOS], {"stop_token_ids": (EOS,)}, (1, STOP, None)),
    "eos ignored but a stop id": (
        [EOS],
        {"stop_token_ids": (EOS,), "ignore_eos": True},
        (1, STOP, 0),
    ),
    "eos before min_tokens": ([EOS, 5, EOS, 5], {"min_tokens": 2}, (3, STOP, None)),
    "stop id before min_tokens": (
        [3, 3, 3],
        {"min_tokens": 2, "stop_token_ids": (3,)},
        (3, STOP, 3),
    ),
    "length": ([5] * 9, {"max_tokens": 4}, (4, FinishReason.LENGTH, None)),
    "stop wins over length": ([5, 5, EOS], {"max_tokens": 3}, (3, STOP, None)),
    "model length": ([5] * 9, {"max_model_len": 7}, (5, FinishReason.LENGTH, None)),
    "string across tokens": ([5, 1, 2, 3, 4, 5], {"stop": ("lo wor",)}, (4, STOP, "lo wor")),
    "string inside a token": ([5, 3, 5], {"stop": ("wo",)}, (2, STOP, "wo")),
    "string not in the prompt": ([3, 5], {"stop": ("llo wor",)}, (2, None, None)),
    "string before min_tokens": (
        [5, 3, 5, 3, 5],
        {"min_tokens": 3, "stop": (" wor",)},
        (4, STOP, " wor"),
    ),
    "string at min_tokens": ([5, 3, 5], {"min_tokens": 2, "stop": (" wor",)}, (2, STOP, " wor")),
    "string over an empty token": (
        [1, EOS, 2],
        {"stop": ("ello",), "ignore_eos": True},
        (3, STOP, "ello"),
    ),
    "bytes of one character": ([5, 6, 7, 5], {"stop": ("é",)}, (3, STOP, "é")),
    "first to begin": ([8, 9], {"stop": ("ba", "abb")}, (2, STOP, "abb")),
    "shorter at the same place": ([1, 2], {"stop": ("hello", "hell")}, (2, STOP, "hell")),
    "overlapping itself": ([10, 8, 8], {"stop": ("aba",)}, (3, STOP, "aba")),
    "outside the byte table": ([99, 1, 2], {"stop": ("llo",)}, (3, STOP, "llo")),
    "stop id over string": ([3], {"stop": ("wor",), "stop_token_ids": (3,)}, (1, STOP, 3)),
    "nothing": ([5, 5], {"stop": ("zzz",)}, (2, None, None)),
}


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("name", CASES)
def test_ends_at_the_same_token_in_runs_of_any_size(name, size):
    tokens, params, expected = CASES[name]
    assert walk_all(tokens, size, **params) == expected


def test_keeps_at_least_the_token_that_ends_it():
    assert trim([5], (5, 5, 5), max_tokens=4) == Trimmed(1, FinishReason.LENGTH)


def test_looks_back_no_further_than_a_stop_string_needs():
    class Watched(list):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    seen: list[int] = []
    walk = StopWalk([EOS], Watched(BYTES), 10_000)
    output = (5,) * 500
    walk.trim([1], decoding(PROMPT, output, params=replace(GREEDY, max_tokens=900, stop=("abc",))))
    assert len(seen) == 3
    seen.clear()
    walk.trim([1], decoding(PROMPT, output, params=replace(GREEDY, max_tokens=900)))
    assert seen == []
