# SPDX-License-Identifier: Apache-2.0
"""Requests for load generators: slices of a text, random tokens, written prompts, or files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workloads import DATA, prompts_by_kind

CORPUS = DATA / "python_reference.txt"
CHARACTERS_PER_TOKEN = 4
"""Of English text, about; only where a server tokenises and a length was asked for."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        content: text, token ids, or the messages of a chat.
        num_output: most tokens to generate.
    """

    content: str | list[int] | list[Message]
    num_output: int


@dataclass(frozen=True)
class Lengths:
    """How long requests are, in tokens.

    Attributes:
        num_input: of prompts that are made.
        num_output: of answers.
        range_ratio: both vary by up to this share, evenly; 0 is none.
    """

    num_input: int
    num_output: int
    range_ratio: float = 0.0

    def draw(self, generator: random.Random) -> tuple[int, int]:
        """Input and output of one request, at least 1 each."""
        if not self.range_ratio:
            return self.num_input, self.num_output
        spread = (1 - self.range_ratio, 1 + self.range_ratio)
        lengths = (self.num_input, self.num_output)
        num_input, num_output = (max(round(n * generator.uniform(*spread)), 1) for n in lengths)
        return num_input, num_output


def corpus_text() -> str:
    """English technical prose with some code, 177 kB."""
    return CORPUS.read_text()


def text_slices(
    tokens: Sequence[int],
    count: int,
    input_len: int,
    output_len: int,
    seed: int,
    range_ratio: float = 0.0,
) -> list[Prompt]:
    """Slices of one long text. No two begin at the same token, so that no cache of prefixes helps.

    Args:
        tokens: of the text; more than input_len.
        count: how many, up to len(tokens) - input_len.
        input_len: tokens of each prompt.
        output_len: tokens of each answer.
        seed: equal seeds give equal requests.
        range_ratio: lengths vary by up to this share.

    Raises:
        ValueError: the text is too short.
    """
    return _slices(list(tokens), count, Lengths(input_len, output_len, range_ratio), seed)


def character_slices(text: str, count: int, lengths: Lengths, seed: int) -> list[Prompt]:
    """The same as text of about so many tokens, for servers that must tokenise it themselves."""
    return _slices(text, count, lengths, seed, CHARACTERS_PER_TOKEN)


def random_tokens(vocab_size: int, count: int, lengths: Lengths, seed: int) -> list[Prompt]:
    """Prompts without any sense: nothing can be guessed from them."""
    generator = random.Random(seed)
    prompts = []
    for _ in range(count):
        num_input, num_output = lengths.draw(generator)
        prompts.append(
            Prompt([generator.randrange(vocab_size) for _ in range(num_input)], num_output)
        )
    return prompts


def written_prompts(count: int, output_len: int, seed: int) -> list[Prompt]:
    """The prompts that benchmarks of speculation use: copies, answers from texts, code and chat."""
    texts = [text for prompts in prompts_by_kind().values() for text in prompts]
    return _shuffled([Prompt(text, output_len) for text in texts], count, seed)


def read_jsonl(path: Path, count: int, output_len: int, seed: int) -> list[Prompt]:
    """Prompts of a file with one JSON object a line: "prompt", a text or token ids, or "messages"
    of a chat, and optionally "output_tokens" (or "max_tokens"). They are shuffled, and repeated if
    there are fewer than `count`.

    Raises:
        ValueError: a line is not as described; the message says which.
    """
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            content = entry["messages"] if "messages" in entry else entry["prompt"]
            limit = entry.get("output_tokens", entry.get("max_tokens", output_len))
            prompts.append(Prompt(content, int(limit)))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f'{path}:{number}: expected {{"prompt": ..., "output_tokens": ...}}, '
                f"got {line[:80]!r} ({error!r})"
            ) from None
    if not prompts:
        raise ValueError(f"{path}: holds no prompts")
    return _shuffled(prompts, count, seed)


def read_sharegpt(
    path: Path, count: int, output_len: int | None, count_tokens: Callable[[str], int], seed: int
) -> list[Prompt]:
    """First questions of a file, a list of {"conversations": [{"value": ...}, ...]}.

    Args:
        path: of the file.
        count: how many; repeated if there are fewer.
        output_len: tokens of each answer; None for as many as the file's answer has.
        count_tokens: of a text.
        seed: of the choice.

    Raises:
        ValueError: the file is not as described, or holds no conversation with an answer.
    """
    try:
        entries = json.loads(path.read_text())
        pairs = [
            (entry["conversations"][0]["value"], entry["conversations"][1]["value"])
            for entry in entries
            if len(entry["conversations"]) >= 2
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f'{path}: expected a list of {{"conversations": [{{"value": ...}}, ...]}} ({error!r})'
        ) from None
    if not pairs:
        raise ValueError(f"{path}: holds no conversation with an answer")
    random.Random(seed).shuffle(pairs)
    chosen = [pairs[index % len(pairs)] for index in range(count)]
    return [
        Prompt(question, output_len or max(count_tokens(answer), 1)) for question, answer in chosen
    ]


def _slices(
    text: str | list[int], count: int, lengths: Lengths, seed: int, size: int = 1
) -> list[Prompt]:
    generator = random.Random(seed)
    longest = round(lengths.num_input * (1 + lengths.range_ratio)) * size
    starts = _starts(len(text) - longest, count, generator)
    prompts = []
    for start in starts:
        num_input, num_output = lengths.draw(generator)
        prompts.append(Prompt(text[start : start + num_input * size], num_output))
    return prompts


def _shuffled(prompts: list[Prompt], count: int, seed: int) -> list[Prompt]:
    random.Random(seed).shuffle(prompts)
    return [prompts[index % len(prompts)] for index in range(count)]


def _starts(choices: int, count: int, generator: random.Random) -> list[int]:
    if count > choices:
        raise ValueError(
            f"the text is too short for {count} prompts of this length; ask for fewer or shorter"
        )
    return generator.sample(range(choices), count)
