# SPDX-License-Identifier: Apache-2.0
"""No part of a stop string is ever shown, and pieces add up to the same text however they come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdspec.entrypoints.openai.output_text import OutputText

TEXTS = st.text(alphabet="ab\N{GRINNING FACE}", max_size=24)
STOPS = st.lists(
    st.text(alphabet="ab\N{GRINNING FACE}", min_size=1, max_size=4), min_size=1, max_size=3
)


@pytest.mark.parametrize(
    ("stops", "pushed", "shown"),
    [
        ((), ["ab", "c"], ["ab", "c"]),
        (("xyz",), ["ab", "c"], ["ab", "c"]),
        (("cd",), ["abc", "e"], ["ab", "ce"]),
        (("cde",), ["abc", "d", "f"], ["ab", "", "cdf"]),
        (("aab",), ["aa", "a"], ["", "a"]),
        (("abac", "ca"), ["abab", "c"], ["ab", "ab"]),
        (("END",), ["ENEND", ""], ["ENEND", ""]),
    ],
)
def test_what_is_held_back(stops, pushed, shown):
    text = OutputText(stops)
    assert [text.push(piece) for piece in pushed] == shown


def test_a_complete_stop_string_that_did_not_stop_is_text():
    text = OutputText(("stop",))
    assert text.push("a stop, ") == "a stop, "
    assert text.push("and st") == "and "
    assert text.stop("op!", "stop", include=False) == ""


def test_the_stop_that_the_last_token_completes_counts():
    """The first occurrence came before min_tokens; the cut is at the second."""
    text = OutputText(("ab",))
    assert text.push("xab") == "xab"
    assert text.push("ya") == "y"
    assert text.stop("bc", "ab", include=False) == ""


@pytest.mark.parametrize(("include", "rest"), [(False, "one "), (True, "one STOP")])
def test_text_after_the_stop_is_cut(include, rest):
    assert OutputText(("STOP",)).stop("one STOP two STOP", "STOP", include=include) == rest


def test_flush_shows_what_only_looked_like_a_stop():
    text = OutputText(("stop",))
    assert text.push("full st") == "full "
    assert text.flush() == "st"
    assert text.flush() == ""


@given(TEXTS, STOPS, st.lists(st.integers(0, 24), max_size=6))
def test_pieces_add_up(whole, stops, cuts):
    text = OutputText(stops)
    borders = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    pieces = [whole[start:end] for start, end in zip(borders, borders[1:], strict=False)]
    assert "".join(text.push(piece) for piece in pieces) + text.flush() == whole


@given(TEXTS, STOPS)
def test_nothing_of_the_first_stop_is_shown(whole, stops):
    """Character by character, until the first stop string is complete."""
    text = OutputText(stops)
    shown = ""
    for length in range(1, len(whole) + 1):
        ended = [stop for stop in stops if whole[:length].endswith(stop)]
        if ended:
            stop = ended[0]
            shown += text.stop(whole[length - 1], stop, include=False)
            assert shown == whole[: length - len(stop)]
            return
        shown += text.push(whole[length - 1])
    assert shown + text.flush() == whole


def test_long_stop_strings_are_cheap():
    """The worst case, a run that almost matches, is linear in text and stop for each push."""
    text = OutputText(("a" * 1000 + "b",))
    for _ in range(300):
        text.push("aaaa")
    assert text.flush() == "a" * 1000
