# SPDX-License-Identifier: Apache-2.0
"""Logits and greedy text equal those of transformers, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdspec.tokenizer import load_tokenizer
from tests.models import oracle
from tests.models.stepping import execute, greedy, make_runner, share

TOLERANCE = 1e-4
QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain photosynthesis to a child.",
    "def fibonacci(n):",
    "List five fruits that are red.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What is 12 times 12?",
    "Name the planets of the solar system.",
    "Why is the sky blue?",
    "Summarise the story of Cinderella.",
    "How do I tie a tie?",
    "What does HTTP stand for?",
    "Tell me a joke about cats.",
    "Describe the water cycle.",
    "What is a prime number?",
    "Write a haiku about winter.",
    "How long is a marathon?",
    "What are the primary colours?",
)


def relative_difference(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(result - expected).max() / np.abs(expected).max())


def prompts_of(vocab_size: int, count: int) -> list[list[int]]:
    generator = np.random.default_rng(5)
    return [
        generator.integers(0, vocab_size, size=int(generator.integers(1, 60))).tolist()
        for _ in range(count)
    ]


@pytest.mark.parametrize("variant", oracle.VARIANTS)
def test_tiny_logits(tmp_path, variant):
    model = oracle.make_tiny(variant, tmp_path)
    runner = make_runner(tmp_path)
    for prompt in prompts_of(oracle.TINY["vocab_size"], 4):
        (logits,) = execute(runner, share(0, prompt, 0, len(prompt)))
        assert relative_difference(logits, oracle.logits_of(model, prompt)) <= TOLERANCE


@pytest.mark.parametrize(
    ("variant", "count"),
    [
        *((variant, 3) for variant in oracle.VARIANTS),
        *(pytest.param(variant, 20, marks=pytest.mark.full) for variant in oracle.VARIANTS),
    ],
)
def test_tiny_greedy_text(tmp_path, variant, count):
    model = oracle.make_tiny(variant, tmp_path)
    runner = make_runner(tmp_path)
    for prompt in prompts_of(oracle.TINY["vocab_size"], count):
        output = greedy(runner, prompt, 64)
        assert output == oracle.greedy_choices(model, prompt, output)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path):
    return oracle.load_smollm2(smollm2_path)


@pytest.fixture(scope="module")
def smollm2_runner(smollm2_path: Path):
    runner = make_runner(smollm2_path)
    yield runner
    runner.close()


def chat(path: Path, question: str) -> list[int]:
    tokenizer = load_tokenizer(path)
    text = tokenizer.apply_chat_template([{"role": "user", "content": question}])
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    "questions", [QUESTIONS[:1], pytest.param(QUESTIONS, marks=pytest.mark.full)]
)
def test_smollm2_logits_and_greedy_text(smollm2_path, smollm2, smollm2_runner, questions):
    for question in questions:
        prompt = chat(smollm2_path, question)
        (logits,) = execute(smollm2_runner, share(0, prompt, 0, len(prompt)))
        assert relative_difference(logits, oracle.logits_of(smollm2, prompt)) <= TOLERANCE
        output = greedy(smollm2_runner, prompt, 64)
        assert output == oracle.greedy_choices(smollm2, prompt, output)


def test_smollm2_as_stored_stays_close(smollm2_path, smollm2):
    """4-bit weights with int8 activations and a bfloat16 cache, as the demo serves it."""
    runner = make_runner(smollm2_path, quantization=None, dtype="bfloat16")
    for question in QUESTIONS[:3]:
        prompt = chat(smollm2_path, question)
        (logits,) = execute(runner, share(0, prompt, 0, len(prompt)))
        expected = oracle.logits_of(smollm2, prompt)
        error = np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2))
        assert error < 0.06
        assert np.mean(logits.argmax(axis=1) == expected.argmax(axis=1)) > 0.9
