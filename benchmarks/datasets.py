# SPDX-License-Identifier: Apache-2.0
"""Requests for load generators: slices of a bundled text, random tokens, or a file of your own."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workloads import DATA

CORPUS = DATA / "python_reference.txt"
CHARACTERS_PER_TOKEN = 4
"""Of English text, about; only where a server tokenises and a length was asked for."""


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        content: text, or token ids.
        num_output: most tokens to generate.
    """

    content: str | list[int]
    num_output: int


def corpus_text() -> str:
    """English technical prose with some code, 177 kB."""
    return CORPUS.read_text()


def text_slices(
    tokens: Sequence[int], count: int, input_len: int, output_len: int, seed: int
) -> list[Prompt]:
    """Slices of one long text. No two begin at the same token, so that no cache of prefixes helps.

    Args:
        tokens: of the text; more than input_len.
        count: how many, up to len(tokens) - input_len.
        input_len: tokens of each prompt.
        output_len: tokens of each answer.
        seed: equal seeds give equal requests.

    Raises:
        ValueError: the text is too short.
    """
    starts = _starts(len(tokens) - input_len, count, seed)
    return [Prompt(list(tokens[start : start + input_len]), output_len) for start in starts]


def character_slices(
    text: str, count: int, input_len: int, output_len: int, seed: int
) -> list[Prompt]:
    """The same as text of about input_len tokens, for servers that must tokenise it themselves."""
    size = input_len * CHARACTERS_PER_TOKEN
    starts = _starts(len(text) - size, count, seed)
    return [Prompt(text[start : start + size], output_len) for start in starts]


def random_tokens(
    vocab_size: int, count: int, input_len: int, output_len: int, seed: int
) -> list[Prompt]:
    """Prompts without any sense: nothing can be guessed from them."""
    generator = random.Random(seed)
    return [
        Prompt([generator.randrange(vocab_size) for _ in range(input_len)], output_len)
        for _ in range(count)
    ]


def read_jsonl(path: Path, count: int, output_len: int, seed: int) -> list[Prompt]:
    """Prompts of a file with one JSON object a line: "prompt", a text or token ids, and optionally
    "output_tokens". They are shuffled, and repeated if there are fewer than `count`.

    Raises:
        ValueError: a line is not as described; the message says which.
    """
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompts.append(Prompt(entry["prompt"], int(entry.get("output_tokens", output_len))))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f'{path}:{number}: expected {{"prompt": ..., "output_tokens": ...}}, '
                f"got {line[:80]!r} ({error!r})"
            ) from None
    if not prompts:
        raise ValueError(f"{path}: holds no prompts")
    random.Random(seed).shuffle(prompts)
    return [prompts[index % len(prompts)] for index in range(count)]


def _starts(choices: int, count: int, seed: int) -> list[int]:
    if count > choices:
        raise ValueError(
            f"the text is too short for {count} prompts of this length; ask for fewer or shorter"
        )
    return random.Random(seed).sample(range(choices), count)
