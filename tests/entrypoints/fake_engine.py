# SPDX-License-Identifier: Apache-2.0
"""An engine without a model: answers over the in-process topic with scripted tokens.

It keeps the engine's contract (stop walk on bytes, min_tokens, contiguous indices, one event for a
step), so that the frontend cannot tell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fdspec.core import (
    Abort,
    ClearCache,
    DraftStats,
    FinishReason,
    SamplingParams,
    Submit,
    TokenEvent,
    TokenLogprob,
)
from fdspec.scheduler.topic import Cleared, EngineStats, EngineTopic, Fatal, Ready
from fdspec.tokenizer import Tokenizer

Reply = Callable[[Submit, int], list[int]]


@dataclass
class Script:
    """How the engine behaves; tests change it.

    Attributes:
        reply: tokens of a choice, before stops and limits; goes on with EOS at the end.
        step_sizes: tokens of successive steps, repeated; more than one token means drafts.
        step_s: pause before every step.
        error: refuse every request with this message.
        error_after: fail with `error` only after so many tokens.
        num_cached: prompt tokens reported as cached.
    """

    reply: Reply
    step_sizes: tuple[int, ...] = (1,)
    step_s: float = 0.0
    error: str | None = None
    error_after: int = 0
    num_cached: int = 0


@dataclass
class _Sequence:
    submit: Submit
    choice: int
    tokens: list[int]
    output: list[int] = field(default_factory=list)
    num_steps: int = 0


class FakeEngine:
    """Runs in a thread from `start` to `stop`."""

    def __init__(self, topic: EngineTopic, tokenizer: Tokenizer, ready: Ready) -> None:
        self.topic = topic
        self.submitted: list[Submit] = []
        self.aborted: list[str] = []
        self.script = Script(self.spell("ok"))
        self._ready = ready
        self._bytes = tokenizer.token_bytes(skip_special_tokens=False)
        self._eos_id = tokenizer.eos_ids[0]
        self._encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self._sequences: dict[tuple[str, int], _Sequence] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def spell(self, text: str) -> Reply:
        """A reply that writes `text`, then EOS."""
        return lambda submit, choice: self._encode(text)

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def start(self) -> None:
        self.topic.publish(self._ready)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def die(self, message: str) -> None:
        self._stopping.set()
        self._thread.join()
        self.topic.publish(Fatal(message))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step(0.02)

    def step(self, idle_s: float = 0.0) -> None:
        """One pass, as an engine makes it."""
        events: list[TokenEvent] = []
        for command in self.topic.poll(64, 0.0 if self._sequences else idle_s):
            if isinstance(command, ClearCache):
                self.topic.publish(Cleared(command.request_id, 7))
            elif isinstance(command, Abort):
                self.aborted.append(command.request_id)
                for key in [key for key in self._sequences if key[0] == command.request_id]:
                    done = self._sequences.pop(key)
                    events.append(TokenEvent(*key, len(done.output), (), finish=FinishReason.ABORT))
            else:
                self.submitted.append(command)
                for choice in range(command.params.n):
                    tokens = self.script.reply(command, choice)
                    emitted = command.emitted[choice] if command.emitted else ()
                    if emitted is not None:
                        sequence = _Sequence(command, choice, tokens, list(emitted))
                        self._sequences[command.request_id, choice] = sequence
        if self._sequences and self.script.step_s:
            time.sleep(self.script.step_s)
        for key, sequence in list(self._sequences.items()):
            event = self._advance(sequence)
            events.append(event)
            if event.finish is not None:
                del self._sequences[key]
        self.topic.emit(events)
        if events:
            self.topic.publish(self.stats())

    def stats(self) -> EngineStats:
        num_blocks = self._ready.num_blocks
        num_used = min(len(self._sequences), num_blocks)
        return EngineStats(len(self._sequences), 0, num_blocks, num_blocks - num_used)

    def _advance(self, sequence: _Sequence) -> TokenEvent:
        script, key = self.script, (sequence.submit.request_id, sequence.choice)
        start = len(sequence.output)
        if script.error is not None and start >= script.error_after:
            return TokenEvent(*key, start, (), finish=FinishReason.ERROR, error=script.error)
        size = script.step_sizes[sequence.num_steps % len(script.step_sizes)]
        if start == 0:
            size = 1
        sequence.num_steps += 1
        finish: FinishReason | None = None
        reason: int | str | None = None
        while size > 0 and finish is None:
            position = len(sequence.output)
            more = position < len(sequence.tokens)
            sequence.output.append(sequence.tokens[position] if more else self._eos_id)
            finish, reason = self._end(sequence)
            size -= 1
        new = tuple(sequence.output[start:])
        params = sequence.submit.params
        return TokenEvent(
            *key,
            start,
            new,
            logprobs=_logprobs(new, params.logprobs),
            prompt_logprobs=_prompt_logprobs(sequence.submit) if start == 0 else None,
            finish=finish,
            stop_reason=reason,
            draft=self._draft(params, start, len(new)),
            num_cached=script.num_cached if start == 0 else 0,
        )

    def _draft(self, params: SamplingParams, start: int, num_new: int) -> DraftStats | None:
        num_drafted = self._ready.num_speculative_tokens
        if params.max_draft_tokens is not None:
            num_drafted = min(num_drafted, params.max_draft_tokens)
        if start == 0 or num_drafted == 0:
            return None
        return DraftStats(num_drafted, min(num_new - 1, num_drafted), "fake")

    def _end(self, sequence: _Sequence) -> tuple[FinishReason | None, int | str | None]:
        params, output = sequence.submit.params, sequence.output
        assert params.max_tokens is not None
        if len(output) >= params.min_tokens:
            if output[-1] == self._eos_id and not params.ignore_eos:
                return FinishReason.STOP, None
            if output[-1] in params.stop_token_ids:
                return FinishReason.STOP, output[-1]
            data = b"".join(self._bytes[token] for token in output)
            before = len(data) - len(self._bytes[output[-1]])
            for stop in params.stop:
                needle = stop.encode()
                if data.find(needle, max(0, before - len(needle) + 1)) >= 0:
                    return FinishReason.STOP, stop
        if len(output) >= params.max_tokens:
            return FinishReason.LENGTH, None
        return None, None


def _logprobs(tokens: tuple[int, ...], count: int | None) -> tuple[TokenLogprob, ...] | None:
    """Token t has logprob -t / 100; the top ones are 1, 2, ... with -0.01, -0.02, ..."""
    if count is None:
        return None
    top = tuple((token, -token / 100) for token in range(1, count + 1))
    return tuple(TokenLogprob(token, -token / 100, token, top) for token in tokens)


def _prompt_logprobs(submit: Submit) -> tuple[TokenLogprob | None, ...] | None:
    entries = _logprobs(submit.prompt, submit.params.prompt_logprobs)
    return entries and (None, *entries[1:])
