# SPDX-License-Identifier: Apache-2.0
"""StopWalk: where a run of new tokens ends.

Goes over the tokens that verification let through, one by one, in the order in which plain decoding
would have produced them, and cuts after the first one that ends the output. Holds no state of any
sequence. Called by the verifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fdspec.core import FinishReason, SamplingParams, SequencePlan

_MAX_CACHED_RULES = 1024


class Trimmed(NamedTuple):
    """How much of a run of tokens is kept.

    Attributes:
        num_tokens: tokens kept, at least 1; the last one is the one that ends the output, if any.
        finish: why the output ends there; None if it goes on.
        stop_reason: the stop string or stop token id; None for EOS and length.
    """

    num_tokens: int
    finish: FinishReason | None = None
    stop_reason: int | str | None = None


class _Rules(NamedTuple):
    """What ends an output, by its parameters. Kept while the parameters are in use."""

    params: SamplingParams
    end_ids: frozenset[int]
    stop_bytes: tuple[bytes, ...]


class StopWalk:
    """The rules that end an output, for one model."""

    def __init__(
        self, eos_ids: Iterable[int], token_bytes: Sequence[bytes], max_model_len: int
    ) -> None:
        """Remember the model's facts.

        Args:
            eos_ids: tokens that end the output, unless a request ignores them.
            token_bytes: [vocab] bytes that each token adds to the text; tokens past its end add
                none.
            max_model_len: most tokens of a sequence, prompt and output together.
        """
        self._eos_ids = frozenset(eos_ids)
        self._token_bytes = token_bytes
        self._max_model_len = max_model_len
        self._rules: dict[int, _Rules] = {}

    def trim(self, tokens: Sequence[int], sequence: SequencePlan) -> Trimmed:
        """Cut a run of tokens after the first one that ends the output. Does not modify.

        Order of precedence at one token: EOS, stop token id, stop string, length.

        Args:
            tokens: at least one token that follows the sequence's history.
            sequence: the sequence as it was before.
        """
        params = sequence.params
        _, end_ids, stop_bytes = self._rules_of(params)
        tail = self._tail(sequence, stop_bytes) if stop_bytes else b""
        assert params.max_tokens is not None
        max_output = min(params.max_tokens, self._max_model_len - sequence.num_prompt)
        num_output = sequence.num_output
        for count, token in enumerate(tokens, 1):
            num_output += 1
            if token in end_ids and num_output > params.min_tokens:
                is_eos = token in self._eos_ids and not params.ignore_eos
                return Trimmed(count, FinishReason.STOP, None if is_eos else token)
            if stop_bytes:
                new = self._bytes_of(token)
                if new and num_output >= params.min_tokens:
                    found = _first_match(tail, new, stop_bytes)
                    if found is not None:
                        return Trimmed(count, FinishReason.STOP, params.stop[found])
                tail += new
            if num_output >= max_output:
                return Trimmed(count, FinishReason.LENGTH)
        return Trimmed(len(tokens))

    def _rules_of(self, params: SamplingParams) -> _Rules:
        rules = self._rules.get(id(params))
        if rules is None:
            if len(self._rules) == _MAX_CACHED_RULES:
                self._rules.clear()
            end_ids = frozenset(params.stop_token_ids)
            if not params.ignore_eos:
                end_ids |= self._eos_ids
            rules = _Rules(params, end_ids, tuple(text.encode() for text in params.stop))
            self._rules[id(params)] = rules
        return rules

    def _tail(self, sequence: SequencePlan, stop_bytes: tuple[bytes, ...]) -> bytes:
        """The end of the output so far, as long as a stop string that is not yet complete."""
        needed = max(map(len, stop_bytes)) - 1
        tail = b""
        position = len(sequence.history)
        while len(tail) < needed and position > sequence.num_prompt:
            position -= 1
            tail = self._bytes_of(int(sequence.history[position])) + tail
        return tail

    def _bytes_of(self, token: int) -> bytes:
        return self._token_bytes[token] if token < len(self._token_bytes) else b""


def _first_match(tail: bytes, new: bytes, stop_bytes: Sequence[bytes]) -> int | None:
    """Index of the stop string that begins first among those that end inside `new`."""
    best: tuple[int, int, int] | None = None
    for index, stop in enumerate(stop_bytes):
        begin = max(len(tail) - len(stop) + 1, 0)
        at = (tail[begin:] + new).find(stop)
        if at >= 0:
            candidate = (begin + at, len(stop), index)
            best = candidate if best is None else min(best, candidate)
    return None if best is None else best[2]
