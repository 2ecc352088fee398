# SPDX-License-Identifier: Apache-2.0
"""RowParamsBuilder: from the sequences of a plan to the sampling parameters of their rows.

Row 0 of a sequence chooses the token after its history, row 1 + i the token after draft token i, as
if the draft up to there were history. Never sees logits. Called by the verifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fdspec.core import SamplingParams, SequenceId, SequencePlan
from fdspec.ops import RowParams
from fdspec.spec_decode.draft_tree import depths, paths
from fdspec.spec_decode.token_counts import CountEntries, TokenCounts

_NO_COUNTS = CountEntries(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8))
_Biases = list[tuple[int, float]]


class RowParamsBuilder:
    """Builds RowParams; keeps the token counts of sequences with penalties between steps."""

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

    def build(self, sequences: Sequence[SequencePlan]) -> RowParams:
        """Parameters of all rows, in order: 1 + num_draft_rows for each sequence.

        Args:
            sequences: sequences that sample.
        """
        if all(self._is_plain_greedy(sequence) for sequence in sequences):
            return self._greedy_rows(sum(1 + s.num_draft_rows for s in sequences))
        rows = _Rows()
        for sequence in sequences:
            self._add(sequence, rows)
        return rows.finish()

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the counts of ended sequences; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._counts.pop(sequence_id, None)

    def _is_plain_greedy(self, sequence: SequencePlan) -> bool:
        params = sequence.params
        return (
            (self._always_greedy or params.is_greedy)
            and not params.has_penalties
            and not params.logit_bias
            and not params.bad_words_token_ids
            and sequence.num_output >= params.min_tokens
        )

    def _greedy_rows(self, num_rows: int) -> RowParams:
        if num_rows not in self._greedy:
            self._greedy[num_rows] = RowParams.greedy(num_rows)
        return self._greedy[num_rows]

    def _add(self, sequence: SequencePlan, rows: _Rows) -> None:
        params = sequence.params
        levels = [0]
        if sequence.draft is not None:
            levels += depths(sequence.draft.parents.tolist())
        positions = [sequence.num_output + level for level in levels]
        temperature = 0.0 if self._always_greedy else params.temperature
        rows.add_dense(params, temperature, sequence.sequence_id[1], positions)
        draft_paths: list[list[int]] = [[]] * len(levels)
        if sequence.draft is not None and (params.has_penalties or params.bad_words_token_ids):
            draft_paths = [[], *paths(sequence.draft)]
        if params.has_penalties:
            counts = self._counts_of(sequence)
            for path in draft_paths:
                # A token outside the vocabulary is never accepted: rows behind it do not matter.
                is_real = all(0 <= token < self._vocab_size for token in path)
                rows.add_counts(counts.with_path(path if is_real else []))
        else:
            rows.add_no_counts(len(levels))
        for path, position in zip(draft_paths, positions, strict=True):
            rows.add_biases(self._biases(sequence, path, position))

    def _counts_of(self, sequence: SequencePlan) -> TokenCounts:
        counts = self._counts.get(sequence.sequence_id)
        if counts is None or counts.num_tokens > len(sequence.history):
            counts = TokenCounts(sequence.history, sequence.num_prompt)
            self._counts[sequence.sequence_id] = counts
        else:
            counts.update(sequence.history)
        return counts

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


def _ends_with(sequence: SequencePlan, path: list[int], word: tuple[int, ...]) -> bool:
    """True if history and then the draft path end with these tokens."""
    length = len(word)
    if length > len(path) + len(sequence.history):
        return False
    from_history = max(length - len(path), 0)
    before = sequence.history[len(sequence.history) - from_history :].tolist()
    return tuple(before + path[len(path) - (length - from_history) :]) == word


class _Rows:
    """Lists of what RowParams holds as arrays."""

    def __init__(self) -> None:
        self._dense: list[tuple[float, int, float, float, int, int, float, float, float]] = []
        self._lengths: list[int] = []
        self._positions: list[int] = []
        self._counts: list[CountEntries] = [_NO_COUNTS]
        self._num_counts: list[int] = []
        self._biases: list[tuple[int, float]] = []
        self._num_biases: list[int] = []

    def add_dense(
        self, params: SamplingParams, temperature: float, choice: int, positions: list[int]
    ) -> None:
        assert params.seed is not None, "the seed is resolved at submission"
        self._dense.append(
            (
                temperature,
                params.top_k,
                params.top_p,
                params.min_p,
                params.seed,
                choice,
                params.repetition_penalty,
                params.presence_penalty,
                params.frequency_penalty,
            )
        )
        self._lengths.append(len(positions))
        self._positions += positions

    def add_counts(self, entries: CountEntries) -> None:
        self._counts.append(entries)
        self._num_counts.append(len(entries.ids))

    def add_no_counts(self, num_rows: int) -> None:
        self._num_counts += [0] * num_rows

    def add_biases(self, biases: _Biases) -> None:
        self._biases += biases
        self._num_biases.append(len(biases))

    def finish(self) -> RowParams:
        columns = zip(*self._dense, strict=True)
        temperature, top_k, top_p, min_p, seed, choice, repetition, presence, frequency = columns
        ids, output_counts, in_prompt = map(np.concatenate, zip(*self._counts, strict=True))
        return RowParams(
            temperature=self._spread(temperature, np.float32),
            top_k=self._spread(top_k, np.int32),
            top_p=self._spread(top_p, np.float32),
            min_p=self._spread(min_p, np.float32),
            seed=self._spread(seed, np.uint64),
            choice=self._spread(choice, np.uint32),
            position=np.array(self._positions, np.uint32),
            repetition_penalty=self._spread(repetition, np.float32),
            presence_penalty=self._spread(presence, np.float32),
            frequency_penalty=self._spread(frequency, np.float32),
            count_splits=_splits(self._num_counts),
            count_ids=ids,
            output_counts=output_counts,
            in_prompt=in_prompt,
            bias_splits=_splits(self._num_biases),
            bias_ids=np.array([token for token, _ in self._biases], np.int32),
            bias_values=np.array([value for _, value in self._biases], np.float32),
        )

    def _spread(self, values: Sequence[float], dtype: type[np.generic]) -> np.ndarray:
        """A value for each row, from one for each sequence."""
        return np.repeat(np.array(values, dtype), self._lengths)


def _splits(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
