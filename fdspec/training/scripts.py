# SPDX-License-Identifier: Apache-2.0
"""Scripts of conversations: from a file of prompts, or for a model that writes its own.

Owns how prompts become tokens; rollout.py plays the scripts.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdspec.core.errors import ConfigError
from fdspec.tokenizer import Tokenizer
from fdspec.training.rollout import Script
from fdspec.training.topics import opening_words

MAX_TURN_TOKENS = 64
MAX_ANSWER_TOKENS = 256
_MARK = "\N{REPLACEMENT CHARACTER}user\N{REPLACEMENT CHARACTER}"
_SAMPLED_SHARE = 0.35
_SAMPLED_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The chat template around a user's turn.

    Attributes:
        before: text from the beginning to the turn.
        after: tokens from the turn to the answer.
    """

    before: str
    after: tuple[int, ...]

    @staticmethod
    def of(tokenizer: Tokenizer) -> TurnFormat:
        """The format of a tokenizer's template.

        Raises:
            ConfigError: there is no template, or it changes what a user says.
        """
        if not tokenizer.has_chat_template:
            raise ConfigError(
                "the model has no chat template to write prompts with; give prompts as "
                "--data FILE.jsonl"
            )
        turn = [{"role": "user", "content": _MARK}]
        before, mark, after = tokenizer.apply_chat_template(turn, True).partition(_MARK)
        if not mark:
            raise ConfigError("the chat template drops the user's words; give --data FILE.jsonl")
        return TurnFormat(before, tuple(tokenizer.encode(after, add_special_tokens=False)))


class Prompts:
    """Conversations 0, 1, ... for training, and others for evaluation.

    Args:
        tokenizer: of the model.
        data: "self", for an endless list of prompts that the model finishes itself; or a file with
            one JSON object a line, which has "messages" (a conversation) or "prompt" (what a user
            says).
        seed: of all draws.
        num_held_out: prompts of a file that are kept for evaluation, at most a tenth of it. The
            model's own held-out prompts are endless, too, and about other subjects.

    Attributes:
        digest: of where prompts come from.
        eos_ids: tokens that end a turn.

    Raises:
        ConfigError: the file or the tokenizer cannot be used.
    """

    def __init__(self, tokenizer: Tokenizer, data: str, seed: int, num_held_out: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._turn_format = TurnFormat.of(tokenizer) if data == "self" else None
        self._openings: list[tuple[int, ...]] = []
        self._held_out_openings: list[tuple[int, ...]] = []
        self.eos_ids = tokenizer.eos_ids
        self.digest = "self"
        if self._turn_format is None:
            openings = _read_openings(tokenizer, Path(data))
            held_out = min(num_held_out, len(openings) // 10)
            random.Random(seed).shuffle(openings)
            self._held_out_openings, self._openings = openings[:held_out], openings[held_out:]
            self.digest = hashlib.blake2b(repr(openings).encode(), digest_size=16).hexdigest()

    def training(self, numbers: Sequence[int]) -> list[Script]:
        """Scripts of some numbers: greedy answers for most, sampled ones for the others."""
        return self._scripts(numbers, self._openings, held_out=False)

    def held_out(self, numbers: Sequence[int]) -> list[Script]:
        """Scripts for evaluation: greedy answers, as a server would give them."""
        return self._scripts(numbers, self._held_out_openings, held_out=True)

    def _scripts(
        self, numbers: Sequence[int], openings: Sequence[tuple[int, ...]], *, held_out: bool
    ) -> list[Script]:
        scripts = []
        for number in numbers:
            turn_end: tuple[int, ...] = ()
            if self._turn_format is not None:
                words = opening_words(number, self._seed, held_out=held_out)
                text = self._turn_format.before + words
                opening = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                turn_end = self._turn_format.after
            elif number < len(openings):
                opening = openings[number]
            else:
                break
            temperature, seed = _answer_choices(number, self._seed, is_greedy=held_out)
            scripts.append(
                Script(
                    opening,
                    turn_end,
                    max_turn_tokens=MAX_TURN_TOKENS,
                    max_answer_tokens=MAX_ANSWER_TOKENS,
                    temperature=temperature,
                    seed=seed,
                    ends_loops=not held_out,
                )
            )
        return scripts


def _read_openings(tokenizer: Tokenizer, path: Path) -> list[tuple[int, ...]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f'--data {path}: cannot be read ({error}); give a JSONL file of prompts, or "self"'
        ) from None
    openings = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            messages = _messages(line, f"{path}:{number}")
            text = tokenizer.apply_chat_template(messages, True)
            openings.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
    if not openings:
        raise ConfigError(f"--data {path}: no prompts; each line must be a JSON object")
    return openings


def _answer_choices(number: int, seed: int, *, is_greedy: bool) -> tuple[float, int]:
    """Temperature of the answer, and seed of the conversation."""
    chooser = random.Random(f"{seed} {number} answer")
    is_sampled = chooser.random() < _SAMPLED_SHARE and not is_greedy
    return _SAMPLED_TEMPERATURE if is_sampled else 0.0, chooser.getrandbits(63)


def _messages(line: str, where: str) -> list[dict[str, Any]]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if isinstance(entry, dict):
        messages, prompt = entry.get("messages"), entry.get("prompt")
        if isinstance(messages, list) and messages:
            return messages
        if isinstance(prompt, str) and prompt:
            return [{"role": "user", "content": prompt}]
    raise ConfigError(
        f'{where}: needs "messages", a list of {{"role", "content"}}, or "prompt", a text'
    )
