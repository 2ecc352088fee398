# SPDX-License-Identifier: Apache-2.0
"""Recording: what a model wrote and thought at each token of a conversation; shards of them.

Owns the format of the files. rollout.py makes recordings, dataset.py reads them back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from fdspec.core.errors import FdspecError

NUM_CANDIDATES = 8
"""Most likely next tokens that are kept for each token."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One conversation, as a model went through it.

    Attributes:
        tokens: [tokens] int32, prompt and answer.
        hidden: [tokens, hidden] bfloat16 as uint16, after the final norm.
        candidates: [tokens, NUM_CANDIDATES] int32, the most likely next tokens, best first.
        logprobs: [tokens, NUM_CANDIDATES] float16, of the candidates; -inf where there are fewer.
        turn_start: index of the first token of the user's turn that the model wrote itself.
        answer_start: index of the first token of the answer.
    """

    tokens: NDArray[np.int32]
    hidden: NDArray[np.uint16]
    candidates: NDArray[np.int32]
    logprobs: NDArray[np.float16]
    turn_start: int
    answer_start: int


def write_shard(path: Path, recordings: Sequence[Recording]) -> None:
    """Write recordings into one safetensors file, whole or not at all."""
    lengths = [len(recording.tokens) for recording in recordings]
    tensors = {
        "tokens": np.concatenate([r.tokens for r in recordings]),
        "hidden": np.concatenate([r.hidden for r in recordings]),
        "candidates": np.concatenate([r.candidates for r in recordings]),
        "logprobs": np.concatenate([r.logprobs for r in recordings]),
        "splits": np.cumsum([0, *lengths], dtype=np.int64),
        "starts": np.array([(r.turn_start, r.answer_start) for r in recordings], np.int32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        file.write(save(tensors))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def read_shard(path: Path) -> list[Recording]:
    """The recordings of a file.

    Raises:
        FdspecError: the file is damaged or of another kind.
    """
    try:
        tensors = load_file(path)
        splits, starts = tensors["splits"].tolist(), tensors["starts"].tolist()
        tokens, hidden = tensors["tokens"], tensors["hidden"]
        candidates, logprobs = tensors["candidates"], tensors["logprobs"]
    except (OSError, SafetensorError, KeyError) as error:
        raise FdspecError(
            f"{path}: not a shard of recordings ({error}); delete it, and it is made again"
        ) from None
    return [
        Recording(
            tokens[low:high],
            hidden[low:high],
            candidates[low:high],
            logprobs[low:high],
            turn_start,
            answer_start,
        )
        for low, high, (turn_start, answer_start) in zip(splits, splits[1:], starts, strict=False)
    ]
