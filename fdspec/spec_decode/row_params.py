# SPDX-License-Identifier: Apache-2.0
"""RowParamsBuilder: from the sequences of a plan to the sampling parameters of their rows.

Row 0 of a sequence chooses the token after its history, row 1 + i the token after draft token i, as
if the draft up to there were history. Never sees logits. Called by the verifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fdspec.core import SamplingParams, SequenceId, SequencePlan
from fdspec.ops import RowParams
from fdspec.spec_decode.draft_tree import depths, paths
from fdspec.spec_decode.token_counts import NO_COUNTS, CountEntries, TokenCounts

_MAX_CACHED_LAYOUTS = 128
_Biases = list[tuple[int, float]]
_Fields = dict[str, np.ndarray]


class RowParamsBuilder:
    """Builds RowParams; keeps what does not change between steps, and counts for the penalties."""

    def __init__(self, eos_ids: Iterable[int], vocab_size: int, *, always_greedy: bool) -> None:
        """Start without any counts.

        Args:
            eos_ids: tokens that end the output, unless a request ignores them.
            vocab_size: ids 0 .. vocab_size - 1 exist.
            always_greedy: treat every temperature as 0.
        """
        self._eos_ids = tuple(eos_ids)
        self._vocab_size = vocab_size
        self._always_greedy = always_greedy
        self._counts: dict[SequenceId, TokenCounts] = {}
        self._greedy: dict[int, RowParams] = {}
        self._layouts: dict[tuple[tuple[int, int, int], ...], _Layout] = {}

    def build(self, sequences: Sequence[SequencePlan]) -> RowParams:
        """Parameters of all rows, in order: 1 + num_draft_rows for each sequence.

        Args:
            sequences: sequences that sample.
        """
        if all(self._is_plain_greedy(sequence) for sequence in sequences):
            return self._greedy_rows(sum(1 + s.num_draft_rows for s in sequences))
        positions = [_positions(sequence) for sequence in sequences]
        fields: _Fields = {"position": np.array([p for each in positions for p in each], np.uint32)}
        if any(sequence.params.has_penalties for sequence in sequences):
            fields |= self._count_fields(sequences)
        if any(self._may_bias(sequence) for sequence in sequences):
            fields |= self._bias_fields(sequences, positions)
        return replace(self._layout(sequences), **fields)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the counts of ended sequences; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._counts.pop(sequence_id, None)

    def _is_plain_greedy(self, sequence: SequencePlan) -> bool:
        params = sequence.params
        return (
            (self._always_greedy or params.is_greedy)
            and not params.has_penalties
            and not self._may_bias(sequence)
        )

    def _may_bias(self, sequence: SequencePlan) -> bool:
        params = sequence.params
        return bool(
            params.logit_bias
            or params.bad_words_token_ids
            or sequence.num_output < params.min_tokens
        )

    def _greedy_rows(self, num_rows: int) -> RowParams:
        if num_rows not in self._greedy:
            self._greedy[num_rows] = RowParams.greedy(num_rows)
        return self._greedy[num_rows]

    def _layout(self, sequences: Sequence[SequencePlan]) -> RowParams:
        """What depends on neither position nor history; mostly the same from step to step."""
        key = tuple((id(s.params), s.sequence_id[1], s.num_draft_rows) for s in sequences)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) == _MAX_CACHED_LAYOUTS:
                self._layouts.clear()
            layout = _Layout([s.params for s in sequences], self._dense_fields(sequences))
            self._layouts[key] = layout
        return layout.rows

    def _dense_fields(self, sequences: Sequence[SequencePlan]) -> RowParams:
        lengths = [1 + sequence.num_draft_rows for sequence in sequences]
        params = [sequence.params for sequence in sequences]
        seeds = [p.seed for p in params]
        assert None not in seeds, "the seed is set when a request is submitted"

        def rows(values: Sequence[float | int | None], dtype: type[np.generic]) -> np.ndarray:
            return np.repeat(np.array(values, dtype), lengths)

        temperatures = [0.0 if self._always_greedy else p.temperature for p in params]
        alike = RowParams.alike(
            sum(lengths),
            temperature=rows(temperatures, np.float32),
            top_k=rows([p.top_k for p in params], np.int32),
            top_p=rows([p.top_p for p in params], np.float32),
            min_p=rows([p.min_p for p in params], np.float32),
            seed=rows(seeds, np.uint64),
            choice=rows([s.sequence_id[1] for s in sequences], np.uint32),
        )
        return replace(
            alike,
            repetition_penalty=rows([p.repetition_penalty for p in params], np.float32),
            presence_penalty=rows([p.presence_penalty for p in params], np.float32),
            frequency_penalty=rows([p.frequency_penalty for p in params], np.float32),
        )

    def _count_fields(self, sequences: Sequence[SequencePlan]) -> _Fields:
        entries: list[CountEntries] = []
        for sequence in sequences:
            if not sequence.params.has_penalties:
                entries += [NO_COUNTS] * (1 + sequence.num_draft_rows)
                continue
            counts = self._counts_of(sequence)
            for path in _paths(sequence):
                # A token outside the vocabulary is never accepted: rows behind it do not matter.
                is_real = all(0 <= token < self._vocab_size for token in path)
                entries.append(counts.with_path(path if is_real else []))
        return {
            "count_splits": _splits([len(entry.ids) for entry in entries]),
            "count_ids": np.concatenate([entry.ids for entry in entries]),
            "output_counts": np.concatenate([entry.output_counts for entry in entries]),
            "in_prompt": np.concatenate([entry.in_prompt for entry in entries]),
        }

    def _counts_of(self, sequence: SequencePlan) -> TokenCounts:
        counts = self._counts.get(sequence.sequence_id)
        if counts is None or counts.num_tokens > len(sequence.history):
            counts = TokenCounts(sequence.history, sequence.num_prompt)
            self._counts[sequence.sequence_id] = counts
        else:
            counts.update(sequence.history)
        return counts

    def _bias_fields(
        self, sequences: Sequence[SequencePlan], positions: Sequence[list[int]]
    ) -> _Fields:
        biases: _Biases = []
        lengths: list[int] = []
        for sequence, sequence_positions in zip(sequences, positions, strict=True):
            for path, position in zip(_paths(sequence), sequence_positions, strict=True):
                row = self._biases(sequence, path, position)
                biases += row
                lengths.append(len(row))
        return {
            "bias_splits": _splits(lengths),
            "bias_ids": np.array([token for token, _ in biases], np.int32),
            "bias_values": np.array([value for _, value in biases], np.float32),
        }

    def _biases(self, sequence: SequencePlan, path: list[int], position: int) -> _Biases:
        params = sequence.params
        biases: _Biases = list(params.logit_bias)
        for word in params.bad_words_token_ids:
            if _ends_with(sequence, path, word[:-1]):
                biases.append((word[-1], -np.inf))
        if position < params.min_tokens:
            biases += [(token, -np.inf) for token in params.stop_token_ids]
            if not params.ignore_eos:
                biases += [(token, -np.inf) for token in self._eos_ids]
        return biases


class _Layout(NamedTuple):
    """Parameters of rows, and the objects whose ids are their key, which this keeps alive."""

    params: list[SamplingParams]
    rows: RowParams


def _positions(sequence: SequencePlan) -> list[int]:
    """Output index of the token that each row chooses."""
    first = sequence.num_output
    if sequence.draft is None:
        return [first]
    return [first, *(first + depth for depth in depths(sequence.draft.parents.tolist()))]


def _paths(sequence: SequencePlan) -> list[list[int]]:
    """For each row the draft tokens that lie between the history and the token it chooses."""
    return [[]] if sequence.draft is None else [[], *paths(sequence.draft)]


def _ends_with(sequence: SequencePlan, path: list[int], word: tuple[int, ...]) -> bool:
    """True if history and then the draft path end with these tokens."""
    length = len(word)
    if length > len(path) + len(sequence.history):
        return False
    from_history = max(length - len(path), 0)
    before = sequence.history[len(sequence.history) - from_history :].tolist()
    return tuple(before + path[len(path) - (length - from_history) :]) == word


def _splits(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
