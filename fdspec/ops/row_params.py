# SPDX-License-Identifier: Apache-2.0
"""RowParams: how the token of each row is chosen; the argument of the sampling ops.

Owns the meaning and the layout of the parameters; never touches logits. Built by the verifier.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature a row takes the most likely token, and no noise enters."""


@dataclass(slots=True, eq=False)
class RowParams:
    """Sampling parameters of R rows. Ops only read them; whoever made them may renew the fields.

    The processors work in float32, in the order of the attributes below: repetition, frequency,
    presence, bias, mask, temperature, top_k, top_p, min_p, and then noise. At least one token is
    always kept. A token whose logit is -inf (or NaN) is never chosen unless all are.

    Attributes:
        temperature: [R] float32; below 1e-5 is greedy: the largest logit after the mask, ties to
            the lowest id.
        top_k: [R] int32, keep exactly the k most likely tokens, ties to lower ids; 0 keeps all.
        top_p: [R] float32, keep the shortest run of tokens, most likely first (ties to lower ids),
            whose mass is at least top_p of what top_k kept; 1 keeps all.
        min_p: [R] float32, drop tokens with less than min_p times the largest probability.
        seed: [R] uint64, key of the noise.
        choice: [R] uint32, index of the choice.
        position: [R] uint32, output index of the token that the row chooses.
        repetition_penalty: [R] float32; a positive logit of a token that occurred is divided by
            it, any other multiplied. 1 is none.
        presence_penalty: [R] float32, subtracted once from tokens that occurred in the output.
        frequency_penalty: [R] float32, subtracted for each occurrence in the output.
        count_splits: [R + 1] int64; row r owns entries count_splits[r] .. count_splits[r + 1].
        count_ids: [entries] int32, tokens that occurred; no token twice in a row.
        output_counts: [entries] int32, how often in the output and the drafts before the row.
        in_prompt: [entries] uint8, 1 if the token occurs in the prompt.
        bias_splits: [R + 1] int64, like count_splits.
        bias_ids: [biases] int32; a token may come more than once, its values add up in order.
        bias_values: [biases] float32, added to the logit; -inf bars the token.
        mask: [R, ceil(vocab / 32)] uint32; bit i % 32 of word i // 32 is set if token i is
            allowed. None allows every token.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    choice: NDArray[np.uint32]
    position: NDArray[np.uint32]
    repetition_penalty: NDArray[np.float32]
    presence_penalty: NDArray[np.float32]
    frequency_penalty: NDArray[np.float32]
    count_splits: NDArray[np.int64]
    count_ids: NDArray[np.int32]
    output_counts: NDArray[np.int32]
    in_prompt: NDArray[np.uint8]
    bias_splits: NDArray[np.int64]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    mask: NDArray[np.uint32] | None = None

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.temperature)

    @classmethod
    def greedy(cls, num_rows: int) -> RowParams:
        """Every row takes its most likely token."""
        return cls.alike(num_rows, temperature=0.0)

    @classmethod
    def alike(
        cls,
        num_rows: int,
        *,
        temperature: ArrayLike = 1.0,
        top_k: ArrayLike = 0,
        top_p: ArrayLike = 1.0,
        min_p: ArrayLike = 0.0,
        seed: ArrayLike = 0,
        choice: ArrayLike = 0,
        position: ArrayLike = 0,
    ) -> RowParams:
        """Rows without history, bias or mask.

        Args:
            num_rows: R.
            temperature: this and the others are a value for all rows or an array of R.
            top_k: see the attribute.
            top_p: see the attribute.
            min_p: see the attribute.
            seed: see the attribute.
            choice: see the attribute.
            position: see the attribute.
        """

        def rows(value: ArrayLike, dtype: type[Scalar]) -> NDArray[Scalar]:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), (num_rows,)))

        return cls(
            temperature=rows(temperature, np.float32),
            top_k=rows(top_k, np.int32),
            top_p=rows(top_p, np.float32),
            min_p=rows(min_p, np.float32),
            seed=rows(seed, np.uint64),
            choice=rows(choice, np.uint32),
            position=rows(position, np.uint32),
            repetition_penalty=rows(1.0, np.float32),
            presence_penalty=rows(0.0, np.float32),
            frequency_penalty=rows(0.0, np.float32),
            count_splits=np.zeros(num_rows + 1, np.int64),
            count_ids=np.zeros(0, np.int32),
            output_counts=np.zeros(0, np.int32),
            in_prompt=np.zeros(0, np.uint8),
            bias_splits=np.zeros(num_rows + 1, np.int64),
            bias_ids=np.zeros(0, np.int32),
            bias_values=np.zeros(0, np.float32),
        )

    def row(self, index: int) -> RowParams:
        """The parameters of one row, as R = 1. Does not modify."""
        counts = slice(self.count_splits[index], self.count_splits[index + 1])
        biases = slice(self.bias_splits[index], self.bias_splits[index + 1])
        sparse: dict[str, Any] = {
            "count_splits": np.array([0, counts.stop - counts.start], np.int64),
            "count_ids": self.count_ids[counts],
            "output_counts": self.output_counts[counts],
            "in_prompt": self.in_prompt[counts],
            "bias_splits": np.array([0, biases.stop - biases.start], np.int64),
            "bias_ids": self.bias_ids[biases],
            "bias_values": self.bias_values[biases],
            "mask": None if self.mask is None else self.mask[index : index + 1],
        }
        dense: dict[str, Any] = {
            field.name: getattr(self, field.name)[index : index + 1]
            for field in fields(self)
            if field.name not in sparse
        }
        return RowParams(**dense, **sparse)
