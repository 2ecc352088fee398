# SPDX-License-Identifier: Apache-2.0
"""TrainingJob: from a model and prompts to the folder of a trained head.

Owns the order of the stages (recordings, training, evaluation, folder) and what lies in the output
folder, so that a job that was killed goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import paddle
from tqdm import tqdm

from fdspec.core.errors import ConfigError
from fdspec.models import ModelOptions, WeightCache, load_model, user_cache_folder
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.models.loading import checkpoint_digest
from fdspec.tokenizer import load_tokenizer
from fdspec.training.batches import frequent_tokens
from fdspec.training.draft_folder import write_draft_folder
from fdspec.training.evaluation import Acceptance, evaluate
from fdspec.training.library import RecordingLibrary, ScriptsOf
from fdspec.training.plot import plot_curve
from fdspec.training.recording import Recording
from fdspec.training.rollout import Rollout
from fdspec.training.scripts import Prompts
from fdspec.training.settings import TrainingPlan, TrainingSettings, plan_for_steps
from fdspec.training.target import Target
from fdspec.training.trainer import Trainer
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_BATCH_SIZE = 16
_RECORDING_SHARE = 0.5
_WEIGHT_CACHE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What to do.

    Attributes:
        model: local path of the target.
        quantization: format of its matrices, as for serving; None as the checkpoint has it.
        data: "self", or a file of prompts.
        output: folder of the head.
        recordings: folder of the recordings; None puts them into `output`.
        budget_s: time for all of it; recordings take up to half. Or None, with num_steps.
        num_steps: length of the training; None takes what is left of the budget.
        data_tokens: answer tokens to learn from; fewer if the budget or the prompts end.
        num_held_out: answers kept for evaluation.
        vocab_size_draft: tokens over which the head drafts; None is all.
        settings: of the training.
    """

    model: Path
    quantization: str | None
    data: str
    output: Path
    recordings: Path | None
    budget_s: float | None
    num_steps: int | None
    data_tokens: int
    num_held_out: int
    vocab_size_draft: int | None
    settings: TrainingSettings


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What came out.

    Attributes:
        acceptance: of the trained head on all held-out answers.
        num_steps: of the training.
        data_tokens: answer tokens that it learned from.
        training_s: time since the recordings were there, in this run.
    """

    acceptance: Acceptance
    num_steps: int
    data_tokens: int
    training_s: float


def run_job(job: TrainingJob) -> TrainingResult:
    """Do it all; goes on from what an earlier run of the same job left in its folders.

    Raises:
        ConfigError: a setting, the model or the prompts cannot be used.
        CheckpointError: the model's files cannot be used.
        FdspecError: a folder holds what belongs to another job.
    """
    start_s = time.monotonic()
    prompts = Prompts(load_tokenizer(job.model), job.data, job.settings.seed, job.num_held_out)
    cache = WeightCache(user_cache_folder(), _WEIGHT_CACHE_BYTES)
    model = load_model(job.model, ModelOptions(quantization=job.quantization, cache=cache))
    target = Target.of(model)
    training, held_out = _recordings(job, model, prompts)
    del model
    recorded_s = time.monotonic()

    def make_plan(trainer: Trainer) -> TrainingPlan:
        if job.num_steps is not None:
            return plan_for_steps(job.num_steps, job.settings.unrolled_share)
        assert job.budget_s is not None
        return trainer.plan_for_time(max(1.0, job.budget_s - (time.monotonic() - start_s)))

    trainer = Trainer(
        target,
        training,
        held_out,
        settings=job.settings,
        checkpoint=_work(job) / "checkpoint.safetensors",
    )
    if trainer.step:
        logger.info("going on from the checkpoint of step %d", trainer.step)
    trainer.run(make_plan)
    acceptance = evaluate(trainer.head, target, held_out, job.settings.num_model_steps)
    _write(job, target, trainer, training)
    result = TrainingResult(
        acceptance, trainer.step, _answer_tokens(training), time.monotonic() - recorded_s
    )
    report = {**asdict(result), "curve": [asdict(point) for point in trainer.curve]}
    (_work(job) / "result.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    return result


def _work(job: TrainingJob) -> Path:
    folder = job.output / "training"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(
    job: TrainingJob, target: Target, trainer: Trainer, training: Sequence[Recording]
) -> None:
    ids = None
    if job.vocab_size_draft is not None:
        ids = frequent_tokens(training, job.vocab_size_draft)
    write_draft_folder(
        job.output,
        target.config,
        {name: weight.numpy() for name, weight in trainer.head.weights().items()},
        num_model_steps=job.settings.num_model_steps,
        draft_token_ids=ids,
    )
    plot_curve(trainer.curve, _work(job) / "curve.png")


def _recordings(
    job: TrainingJob, model: LlamaFamilyModel, prompts: Prompts
) -> tuple[list[Recording], list[Recording]]:
    """Training and held-out recordings: from disk, and as many new ones as are wanted."""
    with paddle.no_grad():
        held_out = _record(job, model, prompts, "held_out", job.num_held_out)[: job.num_held_out]
        training = _record(job, model, prompts, "training", None)
    if not training or not held_out:
        raise ConfigError(f"--data {job.data}: too few prompts to train and to evaluate")
    return training, held_out


def _record(
    job: TrainingJob, model: LlamaFamilyModel, prompts: Prompts, purpose: str, count: int | None
) -> list[Recording]:
    """Shards until there are `count` recordings, or data_tokens, or half of the time is over."""
    is_held_out = purpose == "held_out"
    folder = (job.recordings or job.output / "recordings") / purpose
    origin = {
        "model": checkpoint_digest(job.model, user_cache_folder()),
        "quantization": job.quantization,
        "prompts": prompts.digest,
        "seed": job.settings.seed,
    }
    library = RecordingLibrary(folder, origin)
    decided = _work(job) / "data.json"
    num_shards = None
    if not is_held_out and decided.exists():
        num_shards = json.loads(decided.read_text(encoding="utf-8"))["num_shards"]
    rollout = Rollout(model, prompts.eos_ids, batch_size=_BATCH_SIZE)
    scripts_of: ScriptsOf = prompts.held_out if is_held_out else prompts.training
    recordings: list[Recording] = []
    start_s = time.monotonic()
    shards = 0
    with tqdm(total=count or job.data_tokens, desc=f"Recording ({purpose})", unit="") as bar:
        for shard in library.extend(scripts_of, rollout.run):
            recordings += shard
            shards += 1
            done = len(recordings) if count else _answer_tokens(recordings)
            bar.update(min(done, bar.total) - bar.n)
            seconds = time.monotonic() - start_s
            is_late = job.budget_s is not None and seconds > job.budget_s * _RECORDING_SHARE
            is_enough = done >= bar.total if num_shards is None else shards >= num_shards
            if is_enough or (is_late and num_shards is None and not count):
                break
    if not is_held_out:
        decided.write_text(json.dumps({"num_shards": shards}), encoding="utf-8")
    return recordings


def _answer_tokens(recordings: Sequence[Recording]) -> int:
    return sum(len(recording.tokens) - recording.answer_start for recording in recordings)
