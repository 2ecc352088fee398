# SPDX-License-Identifier: Apache-2.0
"""SamplingParams: how the tokens of one request are chosen and when they end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdspec.core.errors import InvalidParameter

MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1
MAX_LOGIT_BIAS = 100.0
# Below this temperature logits / temperature overflows or is one-hot anyway.
GREEDY_TEMPERATURE = 1e-5
LEAST_FLOAT = 1e-30
MOST_FLOAT = 1e30
"""Bounds of what may be any number above 0: well inside float32, in which kernels compute."""
_TUPLES = ("stop", "stop_token_ids", "logit_bias", "bad_words_token_ids")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request; immutable, shared by all its choices.

    The processors apply in this order, in float32: repetition, presence and frequency penalty,
    logit_bias, bad words, min_tokens mask, temperature, top_k, top_p, min_p.

    Attributes:
        max_tokens: most output tokens of a choice; None means up to the model's length.
        min_tokens: EOS, stop ids and stop strings cannot end the output before this many tokens.
        temperature: 0 (or below 1e-5) is greedy.
        top_p: keep the smallest set of most likely tokens with at least this mass.
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than min_p times the most likely one.
        seed: key of the position-keyed noise; None draws a fresh key at submission.
        n: number of choices.
        stop: strings that end the output (matched on UTF-8 bytes, across tokens); this and the
            fields below that hold several things may be given as lists.
        stop_token_ids: ids that end the output like EOS.
        ignore_eos: go on after EOS, until max_tokens.
        include_stop_str_in_output: keep the stop string in the text.
        repetition_penalty: divides (or multiplies) logits of tokens in prompt + output.
        presence_penalty: subtracted once for a token present in the output.
        frequency_penalty: subtracted for each occurrence in the output.
        logit_bias: (token id, value) pairs added to the logits; a dict is welcome, too.
        bad_words_token_ids: token sequences that must not be completed.
        logprobs: number of top logprobs for each output token; None gives none, 0 the token's own.
        prompt_logprobs: the same for prompt tokens.
        max_draft_tokens: upper limit of draft tokens a step for this request; None leaves the
            server's setting, 0 turns speculation off for the request.
        draft_method: which of the server's proposers drafts; None leaves it to the server.
        prediction: tokens that the output is expected to be like, as a source of drafts; a wrong
            prediction costs time and changes nothing.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    max_draft_tokens: int | None = None
    draft_method: str | None = None
    prediction: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Take a single stop string, lists, and a dict of biases, as people write them."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        for name in _TUPLES:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        words = self.bad_words_token_ids
        if isinstance(words, tuple) and any(isinstance(word, list) for word in words):
            object.__setattr__(self, "bad_words_token_ids", tuple(map(_as_tuple, words)))

    @property
    def is_greedy(self) -> bool:
        """True if no noise enters the choice."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """True if token counts of the history change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def validate(self, *, vocab_size: int, max_logprobs: int = 20) -> None:
        """Check every field. Does not modify.

        Args:
            vocab_size: ids must be in 0..vocab_size - 1.
            max_logprobs: largest allowed `logprobs` and `prompt_logprobs`; -1 means vocab_size.

        Raises:
            InvalidParameter: names the first field that is out of range.
        """
        for name in _TUPLES:
            _check_tuple(name, getattr(self, name))
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(
                    name, f"{name} must be true or false, got {getattr(self, name)!r}"
                )
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
            )
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("top_p", self.top_p, 0.0, 1.0, above_zero=True)
        _check_int("top_k", self.top_k, 0, MAX_TOP_K)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED)
        _check_int("n", self.n, 1, 128)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, math.inf, above_zero=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for text in self.stop:
            if not isinstance(text, str):
                raise InvalidParameter("stop", f"stop strings must be texts, got {text!r}")
            if not text:
                raise InvalidParameter("stop", "stop strings must not be empty")
        for token_id in self.stop_token_ids:
            _check_token_id("stop_token_ids", token_id, vocab_size)
        for pair in self.logit_bias:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidParameter(
                    "logit_bias", f"logit_bias must map token ids to numbers, got {pair!r}"
                )
            token_id, value = pair
            _check_token_id("logit_bias", token_id, vocab_size)
            _check_float("logit_bias", value, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        for word in self.bad_words_token_ids:
            _check_tuple("bad_words_token_ids", word)
            if not word:
                raise InvalidParameter("bad_words", "bad words must not be empty")
            for token_id in word:
                _check_token_id("bad_words_token_ids", token_id, vocab_size)
        limit = vocab_size if max_logprobs < 0 else max_logprobs
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, limit)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, 0, limit)
        if self.max_draft_tokens is not None:
            _check_int("speculative.num_speculative_tokens", self.max_draft_tokens, 0)
        for token_id in self.prediction:
            _check_token_id("prediction", token_id, vocab_size)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_tuple(param: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise InvalidParameter(param, f"{param} must be a list, got {value!r}")


def _check_int(param: str, value: int, low: int, high: int | None = None) -> None:
    allowed = f"at least {low}" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(param, f"{param} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        raise InvalidParameter(param, f"{param} must be {allowed}, got {value}")


def _check_float(
    param: str, value: float, low: float, high: float, *, above_zero: bool = False
) -> None:
    """Within low .. high and, because kernels take float32, within what that can tell apart."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidParameter(param, f"{param} must be a finite number, got {value!r}")
    low, high = (LEAST_FLOAT if above_zero else low), min(high, MOST_FLOAT)
    if not low <= value <= high:
        raise InvalidParameter(
            param, f"{param} must be between {low:g} and {high:g}, got {value:g}"
        )


def _check_token_id(param: str, token_id: int, vocab_size: int) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int):
        raise InvalidParameter(param, f"{param}: token ids must be integers, got {token_id!r}")
    if not 0 <= token_id < vocab_size:
        raise InvalidParameter(
            param, f"{param}: token id {token_id} is outside the vocabulary 0..{vocab_size - 1}"
        )
