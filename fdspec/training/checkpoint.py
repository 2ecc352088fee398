# SPDX-License-Identifier: Apache-2.0
"""TrainingState on disk: written whole or not at all, so that a killed training goes on from it.

Owns the format; the trainer decides when.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fdspec.core.errors import FdspecError
from fdspec.training.settings import TrainingPlan


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point of the training curve.

    Attributes:
        step: after this many steps.
        loss: mean of the training loss since the point before.
        acceptance: by position, on some held-out answers.
    """

    step: int
    loss: float
    acceptance: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """Everything that decides how training goes on.

    Attributes:
        key: digest of settings and data; another key cannot go on from this state.
        step: steps done.
        plan: how many there are to be.
        curve: measurements so far.
        losses: training losses since the last measurement.
        tensors: weights, and what the optimiser keeps.
    """

    key: str
    step: int
    plan: TrainingPlan
    curve: tuple[Measurement, ...]
    losses: tuple[float, ...]
    tensors: Mapping[str, NDArray[np.float32]]


def write_state(path: Path, state: TrainingState) -> None:
    """Replace the file; after a crash it holds either the old or the new state."""
    facts = {
        "key": state.key,
        "step": state.step,
        "plan": asdict(state.plan),
        "curve": [asdict(point) for point in state.curve],
        "losses": state.losses,
    }
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        file.write(save(dict(state.tensors), metadata={"training": json.dumps(facts)}))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def read_state(path: Path, key: str) -> TrainingState | None:
    """The state to go on from; None if there is none.

    Raises:
        FdspecError: it cannot be read, or belongs to other settings or data.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            facts = json.loads(file.metadata()["training"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = TrainingState(
            facts["key"],
            facts["step"],
            TrainingPlan(**facts["plan"]),
            tuple(
                Measurement(point["step"], point["loss"], tuple(point["acceptance"]))
                for point in facts["curve"]
            ),
            tuple(facts["losses"]),
            tensors,
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FdspecError(f"{path}: not a training checkpoint ({error}); delete it") from None
    if state.key != key:
        raise FdspecError(
            f"{path} was written by a training with other settings or data; delete it to start "
            "again, or choose another --output"
        )
    return state
