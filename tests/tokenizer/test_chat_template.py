# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the same text as transformers, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from fdspec.core.errors import CheckpointError, InvalidParameter
from fdspec.tokenizer import load_tokenizer
from fdspec.tokenizer.chat_template import ChatTemplate
from tests.tokenizer import builders

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "exact".'},
    {"role": "user", "content": "你好 {{ not a template }}\n"},
]
TEMPLATES = {
    "plain": builders.TEMPLATE,
    "tools": "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ messages | tojson }}",
    "blocks": (
        "{% for m in messages %}\n    {%- if loop.first %}\n    {% continue %}\n    {% endif %}\n"
        "    {% generation %}{{ m.content | trim }}{% endgeneration %}\n{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{{ ns.n }}:{{ m['content'].split('\\n')[0] }}{% if ns.n == 2 %}{% break %}{% endif %}"
        "{% endfor %}{{ eos_token }}{{ undefined_name }}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_equals_transformers(tmp_path, name, add_generation_prompt):
    folder = builders.save_folder(tmp_path, builders.byte_level(), chat_template=TEMPLATES[name])
    tools = [{"type": "function", "function": {"name": "f", "description": "é<>&"}}]
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    for extra in ({}, {"tools": tools}):
        expected = oracle.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=add_generation_prompt, **extra
        )
        result = load_tokenizer(folder).apply_chat_template(
            MESSAGES, add_generation_prompt=add_generation_prompt, **extra
        )
        assert result == expected


def test_smollm2_template(smollm2_path: Path):
    tokenizer = load_tokenizer(smollm2_path)
    assert tokenizer.has_chat_template
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[:2] == [1, 9690]


def test_template_files_take_precedence(tmp_path):
    folder = builders.save_folder(tmp_path, builders.byte_level())
    (folder / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert load_tokenizer(folder).apply_chat_template(MESSAGES) == "from the file"
    given = load_tokenizer(folder, chat_template="given: {{ messages[0].role }}")
    assert given.apply_chat_template(MESSAGES) == "given: system"


def test_named_templates_use_the_default(tmp_path):
    named = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "plain"}]
    folder = builders.save_folder(tmp_path, builders.byte_level(), chat_template=named)
    assert load_tokenizer(folder).apply_chat_template(MESSAGES) == "plain"


def test_strftime_now_and_kwargs():
    template = ChatTemplate("{{ strftime_now('%Y') | length }}{{ enable_thinking }}", {}, "here")
    variables = {"enable_thinking": False}
    assert template.render([], add_generation_prompt=True, variables=variables) == "4False"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'a' + messages[0].missing }}", "chat template"),
        ("{{ messages.append(1) }}", "chat template"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 // 0 }}", "division"),
    ],
)
def test_refusals_are_the_requests_fault(text, message):
    template = ChatTemplate(text, {}, "here")
    with pytest.raises(InvalidParameter, match=message) as caught:
        template.render(MESSAGES, add_generation_prompt=True, variables={})
    assert caught.value.param == "messages"


def test_broken_template_names_the_line(tmp_path):
    folder = builders.save_folder(
        tmp_path, builders.byte_level(), chat_template="line one\n{% if %}"
    )
    with pytest.raises(CheckpointError, match="line 2"):
        load_tokenizer(folder)


def test_model_without_a_template(tmp_path):
    folder = builders.save_folder(tmp_path, builders.byte_level())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidParameter, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)
