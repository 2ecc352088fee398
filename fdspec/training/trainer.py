# SPDX-License-Identifier: Apache-2.0
"""Trainer: the loop over steps, with measurements and checkpoints.

Owns the head and the optimiser while they change. A training that was killed goes on from its last
checkpoint and ends with the same bits as one that was not: the data's order, the schedule and the
measurements depend on the step alone.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fdspec.training.batches import batch_order, frequent_tokens, make_batch
from fdspec.training.checkpoint import Measurement, TrainingState, read_state, write_state
from fdspec.training.evaluation import evaluate
from fdspec.training.head import MTPHead
from fdspec.training.loss import batch_loss
from fdspec.training.optimizer import Adam
from fdspec.training.recording import Recording
from fdspec.training.settings import TrainingPlan, TrainingSettings, plan_for_time
from fdspec.training.target import Target

_PROBED_STEPS = 4
_NUM_MEASUREMENTS = 10
_MEASURED_CONVERSATIONS = 6
_CHECKPOINT_EVERY_S = 60.0


class Trainer:
    """Trains one head.

    Args:
        target: the model that it drafts for.
        training: recordings to learn from.
        held_out: recordings with greedy answers for measurements.
        settings: how.
        checkpoint: file of the training state.
    """

    def __init__(
        self,
        target: Target,
        training: Sequence[Recording],
        held_out: Sequence[Recording],
        *,
        settings: TrainingSettings,
        checkpoint: Path,
    ) -> None:
        self.head = MTPHead(target, settings.seed)
        self.curve: list[Measurement] = []
        self._target = target
        self._training = training
        self._measured = held_out[:_MEASURED_CONVERSATIONS]
        self._settings = settings
        self._checkpoint = checkpoint
        self._key = _key(settings, training, held_out)
        self._vocabulary = frequent_tokens(training, settings.loss_vocab_size)
        self._optimizer = Adam(self.head.weights(), settings.weight_decay)
        self._losses: list[float] = []
        self._plan: TrainingPlan | None = None
        self._step = self._resume()

    @property
    def step(self) -> int:
        """Steps done, those before a restart included."""
        return self._step

    def run(self, make_plan: Callable[[Trainer], TrainingPlan]) -> None:
        """Train to the end of the plan.

        Args:
            make_plan: says how long; asked only if no checkpoint says it.
        """
        if self._plan is None:
            self._plan = make_plan(self)
            self._measure()
            self._save()
        plan = self._plan
        every = max(1, plan.num_steps // _NUM_MEASUREMENTS)
        order = batch_order(
            self._training,
            tokens_per_batch=self._settings.tokens_per_batch,
            seed=self._settings.seed,
            first=self._step,
        )
        saved_s = time.monotonic()
        with tqdm(total=plan.num_steps, initial=self._step, desc="Training", unit="step") as bar:
            for indexes in itertools.islice(order, plan.num_steps - self._step):
                self._losses.append(self._next_step(plan, indexes))
                self._step += 1
                if self._step % every == 0 or self._step == plan.num_steps:
                    self._measure()
                if time.monotonic() - saved_s > _CHECKPOINT_EVERY_S or self._step == plan.num_steps:
                    self._save()
                    saved_s = time.monotonic()
                bar.set_postfix_str(self._status(), refresh=False)
                bar.update()

    def plan_for_time(self, seconds: float) -> TrainingPlan:
        """A plan for a time budget, from the time of a few steps; the head stays as it is."""
        order = batch_order(
            self._training,
            tokens_per_batch=self._settings.tokens_per_batch,
            seed=self._settings.seed,
        )
        times: list[float] = []
        for num_steps in (1, self._settings.num_model_steps):
            probes = []
            for indexes in itertools.islice(order, _PROBED_STEPS):
                start = time.monotonic()
                self._learn([self._training[index] for index in indexes], num_steps, rate=0.0)
                probes.append(time.monotonic() - start)
            # The first one also finds its memory.
            times.append(float(np.mean(probes[1:])))
        self._optimizer = Adam(self.head.weights(), self._settings.weight_decay)
        single_s, unrolled_s = times
        return plan_for_time(seconds, single_s, unrolled_s, self._settings.unrolled_share)

    def _next_step(self, plan: TrainingPlan, indexes: Sequence[int]) -> float:
        num_steps = 1 if self._step < plan.single_steps else self._settings.num_model_steps
        rate = plan.learning_rate(self._step, self._settings.learning_rate)
        return self._learn([self._training[index] for index in indexes], num_steps, rate)

    def _learn(self, recordings: Sequence[Recording], num_steps: int, rate: float) -> float:
        batch = make_batch(recordings, num_steps)
        loss = batch_loss(self.head, self._target, batch, self._vocabulary)
        loss.backward()
        self._optimizer.update(self._step, rate)
        return float(loss)

    def _measure(self) -> None:
        acceptance = evaluate(
            self.head, self._target, self._measured, self._settings.num_model_steps
        )
        loss = float(np.mean(self._losses)) if self._losses else float("nan")
        self.curve.append(Measurement(self._step, loss, tuple(acceptance.by_position)))
        self._losses.clear()

    def _status(self) -> str:
        loss = f"loss {self._losses[-1] if self._losses else self.curve[-1].loss:.3f}"
        shares = " / ".join(f"{share:.0%}" for share in self.curve[-1].acceptance)
        return f"{loss}, held-out acceptance {shares}"

    def _save(self) -> None:
        assert self._plan is not None
        tensors = {f"weight.{name}": w.numpy() for name, w in self.head.weights().items()}
        tensors |= {name: tensor.numpy() for name, tensor in self._optimizer.state.items()}
        state = TrainingState(
            self._key, self._step, self._plan, tuple(self.curve), tuple(self._losses), tensors
        )
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        write_state(self._checkpoint, state)

    def _resume(self) -> int:
        state = read_state(self._checkpoint, self._key)
        if state is None:
            return 0
        self._plan = state.plan
        self.curve, self._losses = list(state.curve), list(state.losses)
        tensors = dict(state.tensors)
        self.head.load_weights({n: tensors[f"weight.{n}"] for n in self.head.weights()})
        for name, tensor in self._optimizer.state.items():
            tensor.set_value(tensors[name])
        return state.step


def _key(
    settings: TrainingSettings, training: Sequence[Recording], held_out: Sequence[Recording]
) -> str:
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for recording in (*training, *held_out):
        digest.update(recording.tokens.tobytes())
    return digest.hexdigest()
