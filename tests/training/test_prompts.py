# SPDX-License-Identifier: Apache-2.0
"""Where prompts come from, and that those for evaluation are others."""

from __future__ import annotations

import json

import pytest

from fdspec.core import ConfigError
from fdspec.tokenizer import load_tokenizer
from fdspec.training.scripts import Prompts
from fdspec.training.topics import SUBJECTS, opening_words


def subjects(held_out):
    words = [opening_words(number, 0, held_out=held_out) for number in range(600)]
    return {subject for subject in SUBJECTS for text in words if text.endswith(" " + subject)}


def test_held_out_subjects_are_in_no_training_prompt():
    assert len(subjects(True)) > 10
    assert len(subjects(False)) > 100
    assert not subjects(True) & subjects(False)


def test_own_prompts_begin_in_the_users_turn(tiny_path, prompts):
    tokenizer = load_tokenizer(tiny_path)
    script = prompts.held_out([5])[0]
    text = tokenizer.decode(script.opening, False)
    assert text == "<|start|>user\n" + opening_words(5, 0, held_out=True)
    assert tokenizer.decode(script.turn_end, False) == "<|end|><|start|>assistant\n"
    assert script.temperature == 0
    assert prompts.held_out([5]) == [script]


def test_prompts_of_a_file(tmp_path, tiny_path):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"question {number}"}) for number in range(20)]
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    lines[7] = json.dumps({"messages": conversation})
    path.write_text("\n".join([*lines, ""]))
    tokenizer = load_tokenizer(tiny_path)
    prompts = Prompts(tokenizer, str(path), seed=3, num_held_out=8)
    training, held_out = prompts.training(range(64)), prompts.held_out(range(64))
    assert (len(training), len(held_out)) == (18, 2)
    texts = [tokenizer.decode(script.opening, False) for script in (*training, *held_out)]
    assert len(set(texts)) == 20
    assert (
        "<|start|>system\nbe brief<|end|><|start|>user\nhello<|end|><|start|>assistant\n" in texts
    )
    assert prompts.training(range(20, 30)) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("", "no prompts"),
        ('{"prompt": "a"}\n{"text": "b"}', r'jsonl:2: needs "messages"'),
        ("not json", r"jsonl:1: not JSON"),
    ],
)
def test_odd_files_are_explained(tmp_path, tiny_path, content, message):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        Prompts(load_tokenizer(tiny_path), str(path), seed=0, num_held_out=1)
