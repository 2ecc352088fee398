# SPDX-License-Identifier: Apache-2.0
"""Rollout: lets a model write conversations in batch and records its hidden states on the way.

Owns the KV cache and the order of steps. It runs the served model's own layers, whose bits do not
depend on the batch: what is recorded is what a server computes for the same tokens, and no token
is computed twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import ConfigError
from fdspec.core.sampling_params import GREEDY_TEMPERATURE
from fdspec.layers.attention import AttentionMetadata
from fdspec.models.config import ModelConfig
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.training.recording import NUM_CANDIDATES, Recording
from fdspec.utils.bfloat16 import to_bfloat16

_BLOCK_SIZE = 64
_LEAST_LIKELY = 7.0
"""Candidates that are this many nats below the best one teach nothing."""
_TURN_MIN_P = 0.02
_LONGEST_LOOP = 48
_LOOP_COPIES = 3


@dataclass(frozen=True, slots=True)
class Script:
    """How one conversation comes about.

    Attributes:
        opening: its first tokens, at least one.
        turn_end: tokens between the user's turn and the answer. With them the model first goes on
            writing the user's turn, at temperature 1; without, the answer follows the opening.
        max_turn_tokens: most tokens that the model adds to the turn.
        max_answer_tokens: most tokens of the answer.
        temperature: of the answer; 0 is greedy.
        seed: of the draws, which depend on nothing else.
        ends_loops: end an answer that repeats the same piece over and over.
    """

    opening: tuple[int, ...]
    turn_end: tuple[int, ...]
    max_turn_tokens: int
    max_answer_tokens: int
    temperature: float
    seed: int
    ends_loops: bool = True

    @property
    def longest(self) -> int:
        """Most tokens that the conversation can have."""
        turn = self.max_turn_tokens + len(self.turn_end) if self.turn_end else 0
        return len(self.opening) + turn + self.max_answer_tokens


@dataclass(slots=True, eq=False)
class _Conversation:
    """A conversation that is being written."""

    script: Script
    slot: int
    pending: list[int]
    generator: np.random.Generator
    in_answer: bool
    tokens: list[int] = field(default_factory=list)
    hidden: list[NDArray[np.uint16]] = field(default_factory=list)
    candidates: list[tuple[NDArray[np.int32], NDArray[np.float16]]] = field(default_factory=list)
    answer_start: int = 0
    num_written: int = 0
    is_finished: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Cache:
    """KV memory of a batch.

    Attributes:
        block_table: [slots, blocks] int32; the blocks of a slot follow one another.
        layers: keys and values, bfloat16 as uint16.
    """

    block_table: NDArray[np.int32]
    layers: list[tuple[NDArray[np.uint16], NDArray[np.uint16]]]

    @staticmethod
    def for_model(config: ModelConfig, max_tokens: int, num_slots: int) -> _Cache:
        blocks = np.arange(num_slots * -(-max_tokens // _BLOCK_SIZE), dtype=np.int32)
        shape = (len(blocks), config.num_kv_heads, _BLOCK_SIZE, config.head_dim)
        return _Cache(
            blocks.reshape(num_slots, -1),
            [
                (np.zeros(shape, np.uint16), np.zeros(shape, np.uint16))
                for _ in range(config.num_layers)
            ],
        )


class Rollout:
    """Writes conversations; see `run`.

    Args:
        model: as `load_model` gives it.
        eos_ids: tokens that end a turn.
        batch_size: conversations at a time.
    """

    def __init__(self, model: LlamaFamilyModel, eos_ids: Sequence[int], *, batch_size: int) -> None:
        self._model = model
        self._eos_ids = frozenset(eos_ids)
        self._batch_size = batch_size

    def run(self, scripts: Sequence[Script]) -> list[Recording]:
        """Write the conversations of all scripts; equal scripts give equal recordings.

        Raises:
            ConfigError: a script is longer than the model's context, or its opening empty.
        """
        longest = max((script.longest for script in scripts), default=0)
        if longest > self._model.max_model_len or not all(script.opening for script in scripts):
            raise ConfigError(
                f"prompt and answer must have 1 to {self._model.max_model_len} tokens, the context "
                f"of the model; the longest has {longest}. Shorten the prompts"
            )
        cache = _Cache.for_model(self._model.config, longest, self._batch_size)
        num_shared = _num_shared([script.opening for script in scripts])
        waiting = list(enumerate(scripts))[::-1]
        free = list(range(self._batch_size))
        running: dict[int, _Conversation] = {}
        done: dict[int, Recording] = {}
        # What the last conversation of a slot left in the cache and recorded of the shared tokens.
        before: dict[int, Recording] = {}
        while waiting or running:
            while waiting and free:
                index, script = waiting.pop()
                slot = free.pop()
                running[index] = _start(script, slot, before.get(slot), num_shared)
            self._step(list(running.values()), cache)
            for index in [i for i, c in running.items() if c.is_finished]:
                conversation = running.pop(index)
                free.append(conversation.slot)
                done[index] = before[conversation.slot] = _recording(conversation)
        return [done[index] for index in range(len(scripts))]

    def _step(self, conversations: Sequence[_Conversation], cache: _Cache) -> None:
        """Compute all pending tokens, and choose what follows them."""
        rows = [len(c.pending) for c in conversations]
        starts = [len(c.tokens) for c in conversations]
        splits = np.cumsum([0, *rows], dtype=np.int32)
        positions = np.concatenate(
            [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, rows, strict=True)]
        )
        tables = cache.block_table[[c.slot for c in conversations]]
        metadata = AttentionMetadata(
            slots=np.repeat(tables[:, 0].astype(np.int64) * _BLOCK_SIZE, rows) + positions,
            block_table=tables,
            row_splits=splits,
            context_lens=np.array(starts, np.int32),
            parents=np.concatenate([np.arange(-1, n - 1, dtype=np.int32) for n in rows]),
        )
        tokens = np.concatenate([np.array(c.pending, np.int32) for c in conversations])
        hidden = self._model.forward(tokens, positions, metadata, cache.layers)
        logits = np.asarray(self._model.compute_logits(hidden))
        rounded = to_bfloat16(np.asarray(hidden))
        for conversation, low, high in zip(conversations, splits, splits[1:], strict=False):
            conversation.tokens += conversation.pending
            conversation.hidden.append(rounded[low:high])
            conversation.candidates += [_candidates(row) for row in logits[low:high]]
            self._go_on(conversation, logits[high - 1])

    def _go_on(self, conversation: _Conversation, logits: NDArray[np.float32]) -> None:
        """What comes next: a token, the end of the turn, or the end."""
        script = conversation.script
        temperature, min_p = script.temperature, 0.0
        if not conversation.in_answer:
            temperature, min_p = 1.0, _TURN_MIN_P
        token = _sample(logits, temperature, min_p, conversation.generator)
        most = script.max_answer_tokens if conversation.in_answer else script.max_turn_tokens
        has_ended = token in self._eos_ids or conversation.num_written >= most
        if not has_ended:
            conversation.pending = [token]
            conversation.num_written += 1
            conversation.is_finished = (
                conversation.in_answer and script.ends_loops and is_loop(conversation.tokens)
            )
        elif conversation.in_answer:
            conversation.is_finished = True
        else:
            conversation.pending = list(script.turn_end)
            conversation.in_answer = True
            conversation.num_written = 0
            conversation.answer_start = len(conversation.tokens) + len(script.turn_end)


def _num_shared(openings: Sequence[tuple[int, ...]]) -> int:
    """Length of the common beginning; at least one token of each opening is left to compute."""
    if not openings:
        return 0
    columns = itertools.takewhile(lambda c: len(set(c)) == 1, zip(*openings, strict=False))
    return min(sum(1 for _ in columns), min(map(len, openings)) - 1)


def _start(script: Script, slot: int, before: Recording | None, num_shared: int) -> _Conversation:
    conversation = _Conversation(
        script,
        slot,
        list(script.opening),
        np.random.default_rng(script.seed),
        in_answer=not script.turn_end,
        answer_start=len(script.opening),
    )
    if before is not None:
        conversation.pending = list(script.opening[num_shared:])
        conversation.tokens = list(script.opening[:num_shared])
        conversation.hidden = [before.hidden[:num_shared]]
        conversation.candidates = [
            (before.candidates[row], before.logprobs[row]) for row in range(num_shared)
        ]
    return conversation


def is_loop(tokens: Sequence[int]) -> bool:
    """Whether a text ends in several copies of the same piece, and will hardly leave it again."""
    for period in range(1, _LONGEST_LOOP + 1):
        span = max(_LOOP_COPIES * period, 16)
        if len(tokens) < span + period:
            return False
        if tokens[-span:] == tokens[-span - period : -period]:
            return True
    return False


def _sample(
    logits: NDArray[np.float32], temperature: float, min_p: float, generator: np.random.Generator
) -> int:
    if temperature < GREEDY_TEMPERATURE:
        return int(logits.argmax())
    weights = np.exp((logits - logits.max()) / temperature, dtype=np.float64)
    weights[weights < min_p] = 0.0
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, generator.random() * sums[-1], "right"))


def _candidates(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    best = logits.max()
    ids = np.flatnonzero(logits > best - _LEAST_LIKELY)
    # Ties go to the lower id, as in greedy sampling.
    ids = ids[np.argsort(-logits[ids], kind="stable")[:NUM_CANDIDATES]]
    total = best + math.log(np.exp(logits - best).sum())
    padded = np.zeros(NUM_CANDIDATES, np.int32)
    logprobs = np.full(NUM_CANDIDATES, -np.inf, np.float16)
    padded[: len(ids)] = ids
    logprobs[: len(ids)] = logits[ids] - total
    return padded, logprobs


def _recording(conversation: _Conversation) -> Recording:
    ids, logprobs = zip(*conversation.candidates, strict=True)
    return Recording(
        np.array(conversation.tokens, np.int32),
        np.concatenate(conversation.hidden),
        np.stack(ids),
        np.stack(logprobs),
        len(conversation.script.opening),
        conversation.answer_start,
    )
