# SPDX-License-Identifier: Apache-2.0
"""Prompts that the benchmarks share: extractive, code edit, free chat, and token-counted filler."""

from __future__ import annotations

from pathlib import Path

import yaml

DATA = Path(__file__).parent / "data"


def extractive_messages() -> list[dict[str, str]]:
    """Ask for a 400-word text again: most of the answer stands in the prompt."""
    text = (DATA / "lighthouse.txt").read_text()
    return [{"role": "user", "content": f"Repeat the following text exactly.\n\n{text}"}]


def code_messages() -> list[dict[str, str]]:
    """Ask for a program again with one name changed."""
    code = (DATA / "inventory.py.txt").read_text()
    question = f"Copy this Python code, but rename the class to Warehouse.\n\n{code}"
    return [{"role": "user", "content": question}]


def chat_messages() -> list[list[dict[str, str]]]:
    """Free questions; their answers share little with the prompts."""
    lines = (DATA / "chat.txt").read_text().splitlines()
    return [[{"role": "user", "content": line}] for line in lines if line]


def prompts_by_kind() -> dict[str, list[str]]:
    """The prompts for benchmarks of speculation: extractive, rag, json, code and chat."""
    data = yaml.safe_load((DATA / "prompts.yaml").read_text())
    kinds: dict[str, list[str]] = data["kinds"]
    for name, text in data["texts"].items():
        kinds = {
            kind: [prompt.replace(f"{{{name}}}", text.strip()) for prompt in prompts]
            for kind, prompts in kinds.items()
        }
    lines = (DATA / "chat.txt").read_text().splitlines()
    return {**kinds, "chat": [line for line in lines if line]}


def filler_text() -> str:
    """Plain prose of about 3,000 tokens without exact repetition of whole paragraphs."""
    paragraphs = (DATA / "lighthouse.txt").read_text().splitlines()
    questions = (DATA / "chat.txt").read_text().splitlines()
    parts = [f"{i + 1}. {question} {paragraphs[i % 4]}" for i, question in enumerate(questions)]
    return "\n".join(parts)
