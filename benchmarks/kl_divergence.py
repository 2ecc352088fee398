# SPDX-License-Identifier: Apache-2.0
"""How far two models' predictions are apart, and llama.cpp's file of reference predictions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"_logits_"
# Log-probabilities are stored in 16 bits over at most so many units below the largest.
_STORED_RANGE = 16.0
_STEPS = 65535.0


@dataclass(frozen=True)
class Predictions:
    """What a model says of the tokens that follow a text's positions.

    Attributes:
        logprobs: [positions, vocab] float32, log-softmax of the logits.
    """

    logprobs: NDArray[np.float32]

    @classmethod
    def of_logits(cls, logits: NDArray[np.float32]) -> Predictions:
        """From [positions, vocab] float32; does not modify."""
        shifted = logits - logits.max(axis=1, keepdims=True)
        total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
        return cls(shifted - np.log(total).astype(np.float32))

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """[positions, vocab] float32."""
        probabilities: NDArray[np.float32] = np.exp(self.logprobs)
        return probabilities

    @cached_property
    def top_tokens(self) -> NDArray[np.int64]:
        """[positions] int64, the most likely token of each."""
        tokens: NDArray[np.int64] = self.logprobs.argmax(axis=1)
        return tokens

    def divergence_to(self, other: Predictions) -> NDArray[np.float64]:
        """[positions] float64, Kullback-Leibler divergence in nats, self being the truth."""
        difference = self.logprobs - other.logprobs
        difference *= self.probabilities
        divergence: NDArray[np.float64] = difference.sum(axis=1, dtype=np.float64)
        return divergence

    def agrees_with(self, other: Predictions) -> NDArray[np.bool_]:
        """[positions] bool, whether the most likely token is the same."""
        same: NDArray[np.bool_] = self.top_tokens == other.top_tokens
        return same

    def surprise(self, next_tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Negative log-probability of the tokens that really follow."""
        chosen: NDArray[np.float32] = -self.logprobs[np.arange(len(next_tokens)), next_tokens]
        return chosen


class ReferenceFile:
    """Predictions in the form that `llama-perplexity --kl-divergence-base` reads.

    A magic word, tokens of a window, vocabulary and number of windows as int32, the tokens; then
    for each scored position a scale and a minimum in float32 and the log-probabilities as uint16.

    Args:
        path: file to write.
        tokens: [windows, tokens of a window] int32.
        vocab_size: of the model.
    """

    def __init__(self, path: Path, tokens: NDArray[np.int32], vocab_size: int) -> None:
        windows, window = tokens.shape
        self._file: BinaryIO = path.open("wb")
        self._file.write(_MAGIC + struct.pack("<iii", window, vocab_size, windows))
        self._file.write(tokens.astype("<i4").tobytes())

    def __enter__(self) -> ReferenceFile:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, predictions: Predictions) -> None:
        """Append the scored positions of the next window."""
        self._file.write(stored_form(predictions.logprobs).tobytes())


def stored_form(logprobs: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[positions, 4 + vocab rounded up to even] uint16: scale, minimum, and steps above it."""
    positions, vocab = logprobs.shape
    largest = logprobs.max(axis=1, keepdims=True)
    least = np.maximum(logprobs.min(axis=1, keepdims=True), largest - np.float32(_STORED_RANGE))
    scale = (largest - least) / np.float32(_STEPS)
    steps = np.divide(logprobs - least, scale, out=np.zeros_like(logprobs), where=scale > 0)
    stored = np.zeros((positions, 4 + 2 * ((vocab + 1) // 2)), np.uint16)
    stored[:, :4] = np.concatenate([scale, least], axis=1).astype("<f4").view(np.uint16)
    stored[:, 4 : 4 + vocab] = np.rint(np.clip(steps, 0, _STEPS))
    return stored
