# SPDX-License-Identifier: Apache-2.0
"""Training learns, goes on after it was killed with the same bits, and ends in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from fdspec.core import FdspecError
from fdspec.entrypoints.train_draft import main
from fdspec.training import trainer as trainer_module
from fdspec.training.batches import batch_order
from fdspec.training.draft_folder import write_draft_folder
from fdspec.training.evaluation import walk
from fdspec.training.settings import TrainingPlan, TrainingSettings, plan_for_steps, plan_for_time
from fdspec.training.trainer import Trainer

SETTINGS = TrainingSettings(tokens_per_batch=300, loss_vocab_size=64, learning_rate=3e-3)


@pytest.fixture
def make_trainer(target, recordings, held_out, tmp_path):
    def make(settings=SETTINGS, name="checkpoint", num_recordings=6):
        path = tmp_path / f"{name}.safetensors"
        training = recordings[:num_recordings]
        return Trainer(target, training, held_out, settings=settings, checkpoint=path)

    return make


def weights_of(trainer):
    return {name: weight.numpy() for name, weight in trainer.head.weights().items()}


def test_the_loss_falls(make_trainer):
    trainer = make_trainer(replace(SETTINGS, learning_rate=1e-2), num_recordings=1)
    trainer.run(lambda _: TrainingPlan(20, 4))
    losses = [point.loss for point in trainer.curve[1:]]
    assert losses[9] < 0.8 * losses[0]
    assert trainer.step == 24
    assert [point.step for point in trainer.curve] == [0, *range(2, 25, 2)]


class _Killed(Exception):
    pass


def test_a_resumed_training_has_the_same_bits(make_trainer, monkeypatch):
    plan = TrainingPlan(5, 3)
    whole = make_trainer(name="whole")
    whole.run(lambda _: plan)

    monkeypatch.setattr(trainer_module, "_CHECKPOINT_EVERY_S", 0.0)
    killed = make_trainer(name="killed")
    learn = killed._learn

    def die(*arguments, **options):
        if killed.step == 4:
            raise _Killed
        return learn(*arguments, **options)

    monkeypatch.setattr(killed, "_learn", die)
    with pytest.raises(_Killed):
        killed.run(lambda _: plan)
    resumed = make_trainer(name="killed")
    assert resumed.step == 4
    resumed.run(lambda _: pytest.fail("the plan is in the checkpoint"))
    assert resumed.curve[1:] == whole.curve[1:]
    for name, values in weights_of(whole).items():
        np.testing.assert_array_equal(values, weights_of(resumed)[name], err_msg=name)


def test_a_checkpoint_of_other_settings_is_refused(make_trainer):
    make_trainer().run(lambda _: TrainingPlan(1, 1))
    with pytest.raises(FdspecError, match="other settings or data"):
        make_trainer(replace(SETTINGS, learning_rate=1e-3))


def test_planning_leaves_the_head_alone(make_trainer):
    trainer = make_trainer()
    before = weights_of(trainer)
    plan = trainer.plan_for_time(5.0)
    assert plan.single_steps > plan.unrolled_steps >= 1
    for name, values in before.items():
        np.testing.assert_array_equal(values, weights_of(trainer)[name])


def test_plans():
    assert plan_for_time(100, 0.5, 2.0, 0.25) == TrainingPlan(150, 12)
    plan = plan_for_steps(100, 0.35)
    assert plan.num_steps == 100
    assert plan.learning_rate(0, 1.0) < plan.learning_rate(30, 1.0) == 1.0
    assert 0 < plan.learning_rate(99, 1.0) < 0.05


def test_the_order_depends_on_seed_and_step_alone(recordings):
    def first_batches(count, first):
        order = batch_order(recordings, tokens_per_batch=300, seed=5, first=first)
        return [next(order) for _ in range(count)]

    whole = first_batches(9, 0)
    assert first_batches(4, 5) == whole[5:]
    indexes = [index for batch in whole for index in batch]
    assert sorted(indexes[: len(recordings)]) == list(range(len(recordings)))


def test_the_walk_of_a_server():
    # Rows 0..5; drafts from row t are for tokens t + 2 and t + 3.
    right = np.array([[1, 0, 1, 0, 0, 1], [0, 0, 1, 0, 0, 1]], bool)
    acceptance = walk(right, 1)
    # Row 1: wrong; row 2: both right; row 5: one draft fits, and is right.
    assert acceptance.drafted == (3, 1)
    assert acceptance.accepted == (2, 1)
    assert (acceptance.num_tokens, acceptance.num_steps) == (1 + 3 + 2, 3)
    assert acceptance.plus(acceptance).tokens_per_step == acceptance.tokens_per_step == 2.0


def test_the_folder_is_readable(make_trainer, target, tmp_path):
    weights = weights_of(make_trainer())
    ids = np.array([3, 5, 8], np.int32)
    write_draft_folder(tmp_path, target.config, weights, num_model_steps=3, draft_token_ids=ids)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.pop("draft_token_ids").tolist() == [3, 5, 8]
    assert set(stored) == set(weights)
    for name, values in weights.items():
        assert str(stored[name].dtype) == "torch.bfloat16"
        np.testing.assert_allclose(stored[name].float().numpy(), values, rtol=2**-8)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["num_model_steps"]) == ("fdspec_mtp", 3)
    assert stored["model.mtp_linear_proj.0.weight"].shape == (64, 128)


def command(tiny_path, output, steps):
    return [
        *("--model", str(tiny_path), "--quantization", "none", "--output", str(output)),
        *("--steps", str(steps), "--data-tokens", "100", "--held-out", "2", "--num-threads", "1"),
        *("--batch-tokens", "300", "--vocab-size-draft", "100"),
    ]


def test_the_command_makes_a_head(tiny_path, tmp_path, capsys):
    assert main(command(tiny_path, tmp_path / "head", 3)) == 0
    assert '"method": "mtp"' in capsys.readouterr().out
    result = json.loads((tmp_path / "head" / "training" / "result.json").read_text())
    assert result["num_steps"] == 3
    assert (tmp_path / "head" / "config.json").exists()
    assert main([*command(tiny_path, tmp_path / "head", 3), "--learning-rate", "0.5"]) == 1
    assert "other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [("--hours", "0"), ("--steps", "a"), ("--hours", "1", "--steps")]
)
def test_odd_options_are_explained(option, capsys):
    with pytest.raises(SystemExit):
        main(["--model", "x", "--output", "y", *option])
    assert option[0] in capsys.readouterr().err or "--steps" in capsys.readouterr().err


@pytest.mark.full
def test_a_killed_command_ends_with_the_same_head(tiny_path, tmp_path):
    outputs = tmp_path / "whole", tmp_path / "killed"
    program = [sys.executable, "-m", "fdspec.entrypoints.train_draft"]
    code = (
        "import sys; from fdspec.training import trainer; trainer._CHECKPOINT_EVERY_S = 0.0; "
        "from fdspec.entrypoints.train_draft import main; sys.exit(main(sys.argv[1:]))"
    )
    subprocess.run([*program, *command(tiny_path, outputs[0], 40)], check=True)
    child = subprocess.Popen([sys.executable, "-c", code, *command(tiny_path, outputs[1], 40)])
    checkpoint = outputs[1] / "training" / "checkpoint.safetensors"

    def steps_done():
        if not checkpoint.exists():
            return 0
        with safe_open(checkpoint, "numpy") as file:
            return json.loads(file.metadata()["training"])["step"]

    while steps_done() < 5:
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert steps_done() < 40
    subprocess.run([*program, *command(tiny_path, outputs[1], 40)], check=True)
    one, other = ((folder / "model.safetensors").read_bytes() for folder in outputs)
    assert one == other
