# SPDX-License-Identifier: Apache-2.0
"""RowParamsBuilder: from the sequences of a plan to the sampling parameters of their rows.

Row 0 of a sequence chooses the token after its history, row 1 + i the token after draft token i, as
if the draft up to there were history. Never sees logits. Called by the verifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from fdspec.core import SamplingParams, SequenceId, SequencePlan
from fdspec.core.draft import depths
from fdspec.ops import RowParams
from fdspec.spec_decode.draft_tree import paths
from fdspec.spec_decode.token_counts import NO_COUNTS, CountEntries, TokenCounts

_MAX_CACHED_LAYOUTS = 128
_Biases = list[tuple[int, float]]
_Fields = dict[str, np.ndarray]
_DENSE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "choice",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


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
        self._layouts: dict[tuple[tuple[int, int], ...], _Layout] = {}

    def build(self, sequences: Sequence[SequencePlan]) -> RowParams:
        """Parameters of all rows, in order: 1 + num_draft_rows for each sequence.

        The arrays are valid until the next call.

        Args:
            sequences: sequences that sample.
        """
        layout = self._layout(sequences)
        num_rows = [1 if s.draft is None else 1 + len(s.draft.tokens) for s in sequences]
        if layout.is_plain_greedy:
            return self._greedy_rows(sum(num_rows))
        positions = _positions(sequences)
        rows = layout.rows(num_rows)
        rows.position = np.array(positions, np.uint32)
        if layout.has_penalties:
            self._set_counts(rows, sequences)
        if layout.may_bias:
            self._set_biases(rows, sequences, positions)
        return rows

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the counts of ended sequences; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._counts.pop(sequence_id, None)

    def _greedy_rows(self, num_rows: int) -> RowParams:
        if num_rows not in self._greedy:
            self._greedy[num_rows] = RowParams.greedy(num_rows)
        return self._greedy[num_rows]

    def _layout(self, sequences: Sequence[SequencePlan]) -> _Layout:
        """What depends on neither position, history nor draft; mostly the same in every step."""
        key = tuple([(id(s.params), s.sequence_id[1]) for s in sequences])
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) == _MAX_CACHED_LAYOUTS:
                self._layouts.clear()
            choices = [s.sequence_id[1] for s in sequences]
            layout = _Layout(
                [s.params for s in sequences], choices, always_greedy=self._always_greedy
            )
            self._layouts[key] = layout
        return layout

    def _set_counts(self, rows: RowParams, sequences: Sequence[SequencePlan]) -> None:
        entries: list[CountEntries] = []
        for sequence in sequences:
            if not sequence.params.has_penalties:
                entries += [NO_COUNTS] * (1 + sequence.num_draft_rows)
                continue
            counts = self._counts_of(sequence)
            entries.append(counts.entries())
            if sequence.draft is not None:
                # A token outside the vocabulary is never accepted: rows behind it do not matter.
                entries += [
                    counts.with_path(path if self._is_real(path) else [])
                    for path in paths(sequence.draft)
                ]
        rows.count_splits = _splits([len(entry.ids) for entry in entries])
        if len(entries) == 1:
            rows.count_ids, rows.output_counts, rows.in_prompt = entries[0]
        else:
            columns = zip(*entries, strict=True)
            rows.count_ids, rows.output_counts, rows.in_prompt = map(np.concatenate, columns)

    def _is_real(self, path: list[int]) -> bool:
        return all(0 <= token < self._vocab_size for token in path)

    def _counts_of(self, sequence: SequencePlan) -> TokenCounts:
        counts = self._counts.get(sequence.sequence_id)
        if counts is None or counts.num_tokens > len(sequence.history):
            counts = TokenCounts(sequence.history, sequence.num_prompt)
            self._counts[sequence.sequence_id] = counts
        else:
            counts.update(sequence.history)
        return counts

    def _set_biases(
        self, rows: RowParams, sequences: Sequence[SequencePlan], positions: list[int]
    ) -> None:
        biases: _Biases = []
        lengths: list[int] = []
        for sequence in sequences:
            for path in _paths(sequence):
                row = self._biases(sequence, path, positions[len(lengths)])
                biases += row
                lengths.append(len(row))
        rows.bias_splits = _splits(lengths)
        rows.bias_ids = np.array([token for token, _ in biases], np.int32)
        rows.bias_values = np.array([value for _, value in biases], np.float32)

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


class _Layout:
    """Parameters of some sequences, and of their rows in the latest step.

    Attributes:
        is_plain_greedy: every row takes its largest logit as it is.
        has_penalties: some rows need counts.
        may_bias: some rows may have biases.
    """

    def __init__(
        self, params: list[SamplingParams], choices: list[int], *, always_greedy: bool
    ) -> None:
        # The ids of these objects are the layout's key: they must not be given to others.
        self._params = params
        self.has_penalties = any(p.has_penalties for p in params)
        self.may_bias = any(
            p.logit_bias or p.bad_words_token_ids or p.min_tokens > 0 for p in params
        )
        is_greedy = always_greedy or all(p.is_greedy for p in params)
        self.is_plain_greedy = is_greedy and not self.has_penalties and not self.may_bias
        seeds = [p.seed for p in params]
        assert None not in seeds, "the seed is set when a request is submitted"
        self._sequences = RowParams.alike(
            len(params),
            temperature=[0.0 if always_greedy else p.temperature for p in params],
            top_k=[p.top_k for p in params],
            top_p=[p.top_p for p in params],
            min_p=[p.min_p for p in params],
            seed=np.array(seeds, np.uint64),
            choice=choices,
        )
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            setattr(self._sequences, name, np.array([getattr(p, name) for p in params], np.float32))
        self._num_rows = [1] * len(params)
        self._rows = self._sequences

    def rows(self, num_rows: list[int]) -> RowParams:
        """So many rows for each sequence; only the fields in _DENSE are filled in anew."""
        if num_rows != self._num_rows:
            index = np.repeat(np.arange(len(num_rows)), num_rows)
            dense: _Fields = {name: getattr(self._sequences, name)[index] for name in _DENSE}
            splits = np.zeros(len(index) + 1, np.int64)
            self._rows = replace(self._sequences, count_splits=splits, bias_splits=splits, **dense)
            self._num_rows = num_rows
        return self._rows


def _positions(sequences: Sequence[SequencePlan]) -> list[int]:
    """Output index of the token that each row chooses."""
    positions = []
    for sequence in sequences:
        # Sequences that sample have all of their prompt in the history.
        first = len(sequence.history) - sequence.num_prompt
        positions.append(first)
        if sequence.draft is not None:
            positions += [first + depth for depth in depths(sequence.draft.parents.tolist())]
    return positions


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
    return np.array([0, *accumulate(lengths)], np.int64)
