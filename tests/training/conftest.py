# SPDX-License-Identifier: Apache-2.0
"""A tiny model with a tokenizer, and what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdspec.models import ModelOptions, load_model
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.tokenizer import load_tokenizer
from fdspec.training.recording import Recording
from fdspec.training.rollout import Rollout
from fdspec.training.scripts import Prompts
from fdspec.training.target import Target
from tests.entrypoints.tiny_tokenizer import save_tokenizer
from tests.models.oracle import make_tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny("llama", folder, tie_word_embeddings=True)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_path: Path) -> LlamaFamilyModel:
    return load_model(tiny_path, ModelOptions(quantization="none"))


@pytest.fixture(scope="session")
def target(tiny_model: LlamaFamilyModel) -> Target:
    return Target.of(tiny_model)


@pytest.fixture(scope="session")
def prompts(tiny_path: Path) -> Prompts:
    return Prompts(load_tokenizer(tiny_path), "self", seed=0, num_held_out=4)


@pytest.fixture(scope="session")
def rollout(tiny_model: LlamaFamilyModel, prompts: Prompts) -> Rollout:
    return Rollout(tiny_model, prompts.eos_ids, batch_size=4)


@pytest.fixture(scope="session")
def recordings(rollout: Rollout, prompts: Prompts) -> list[Recording]:
    return rollout.run(prompts.training(range(6)))


@pytest.fixture(scope="session")
def held_out(rollout: Rollout, prompts: Prompts) -> list[Recording]:
    return rollout.run(prompts.held_out(range(2)))
