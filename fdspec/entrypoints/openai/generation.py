# SPDX-License-Identifier: Apache-2.0
"""Generation: one HTTP request from its prompts to its answer or stream.

Owns the engine's stream of events for the request, and gives it back however the request ends. The
routes prepare it; `forms.py` says what the choices look like.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from fdspec.core import FinishReason, SamplingParams, Submit, TokenEvent
from fdspec.entrypoints.openai.choice import Choice, Piece, join_pieces
from fdspec.entrypoints.openai.draft_report import DraftReport
from fdspec.entrypoints.openai.errors import ApiError, as_api_error, bad_request
from fdspec.entrypoints.openai.forms import Form
from fdspec.entrypoints.openai.frontend import Frontend
from fdspec.entrypoints.openai.params import fit_params, length_field
from fdspec.entrypoints.openai.prompts import Prompt
from fdspec.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    StreamOptions,
)
from fdspec.version import __version__

MAX_CHOICES = 1024
_DONE = b"data: [DONE]\n\n"


class Generation:
    """One request being answered.

    Args:
        frontend: the server.
        request: the body, checked.
        params: of the request, `max_tokens` and `seed` possibly open.
        prompts: at least one; each is one command with `n` choices.
        form: how to show choices.
        response_id: public id, without prefix.
        model: name to report.
        arrival_s: when the request arrived, by time.monotonic.
        user: whom the request is for.

    Raises:
        ApiError: 400 if a prompt and its output do not fit.
    """

    def __init__(
        self,
        frontend: Frontend,
        request: ChatCompletionRequest | CompletionRequest,
        params: SamplingParams,
        prompts: Sequence[Prompt],
        form: Form,
        *,
        response_id: str,
        model: str,
        arrival_s: float,
        user: str = "",
    ) -> None:
        if len(prompts) * params.n > MAX_CHOICES:
            raise bad_request(
                "n", f"{len(prompts)} prompts with n {params.n} exceed {MAX_CHOICES} choices"
            )
        self._frontend = frontend
        self._form = form
        self._has_prediction = request.prediction is not None
        self._options = request.stream_options or StreamOptions()
        self._arrival_s = arrival_s
        self._user = user
        self._head = {
            "id": f"{form.id_prefix}{response_id}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"fdspec-{__version__}",
        }
        self._commands: list[Submit] = []
        self._choices: dict[tuple[str, int], _TimedChoice] = {}
        for prompt in prompts:
            self._add_prompt(request, params, prompt)

    def _add_prompt(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        params: SamplingParams,
        prompt: Prompt,
    ) -> None:
        frontend = self._frontend
        fitted = fit_params(
            params,
            len(prompt.token_ids),
            frontend.limits,
            prompt_field=prompt.field,
            length_field=length_field(request),
            fresh_seed=frontend.fresh_seed(),
        )
        # The client's own id may be in use twice; the engine's must not be.
        command = Submit(
            uuid.uuid4().hex,
            prompt.token_ids,
            fitted,
            request.priority,
            request.cache_salt,
            self._user,
        )
        self._commands.append(command)
        for number in range(params.n):
            choice = Choice(
                len(self._choices),
                prompt,
                fitted,
                frontend.tokenizer,
                skip_special_tokens=request.skip_special_tokens,
                prompt_only=isinstance(request, CompletionRequest) and request.max_tokens == 0,
            )
            self._choices[command.request_id, number] = _TimedChoice(choice, self._arrival_s)

    async def answer(self) -> dict[str, Any]:
        """Generate everything; returns the response's body.

        Raises:
            ApiError, EngineDead: the engine could not finish.
        """
        pieces: dict[int, list[Piece]] = {timed.choice.index: [] for timed in self._timed}
        async with contextlib.aclosing(self._steps()) as steps:
            async for batch in steps:
                for choice, piece in batch:
                    pieces[choice.index].append(piece)
        body = {**self._head, "object": self._form.name}
        items = []
        for timed in self._timed:
            joined = join_pieces(pieces[timed.choice.index])
            items.append(self._form.whole(timed.choice, joined))
            body |= self._form.envelope(timed.choice, joined)
        return {**body, "choices": items, "usage": self._usage()}

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, those of one step together; ends with [DONE].

        An error before the first chunk is raised, later ones become an event.

        Raises:
            ApiError, EngineDead: the engine failed before the first chunk.
        """
        started = False
        try:
            async with contextlib.aclosing(self._steps()) as steps:
                async for batch in steps:
                    data = b"".join(self._chunk(choice, piece) for choice, piece in batch)
                    if data:
                        yield data
                        started = True
            if self._options.include_usage:
                yield self._event({"choices": [], "usage": self._usage()})
        except Exception as error:
            if not started:
                raise
            yield _sse(as_api_error(error).body())
        yield _DONE

    @property
    def _timed(self) -> list[_TimedChoice]:
        return list(self._choices.values())

    async def _steps(self) -> AsyncGenerator[list[tuple[Choice, Piece]], None]:
        """Submit, and yield what each batch of events adds; aborts what is left on any exit."""
        client, metrics = self._frontend.client, self._frontend.metrics
        for command in self._commands:
            assert command.params.max_tokens is not None
            metrics.request_started(len(command.prompt), command.params.max_tokens)
        stream = await client.submit(self._commands)
        try:
            async for events in stream:
                batch: list[tuple[Choice, Piece]] = []
                try:
                    self._take(events, batch)
                except ApiError:
                    # What came before the failure is the client's.
                    yield batch
                    raise
                yield batch
        finally:
            client.release(stream)
            for timed in self._timed:
                timed.end_unfinished(self._frontend)

    def _take(self, events: Sequence[TokenEvent], batch: list[tuple[Choice, Piece]]) -> None:
        """Measure events and append what they add.

        Raises:
            ApiError: a choice failed; the events before it are in the batch.
        """
        now_s = time.monotonic()
        for event in events:
            timed = self._choices[event.request_id, event.choice]
            timed.observe(event, now_s, self._frontend)
            batch.append((timed.choice, timed.choice.take(event)))

    def _chunk(self, choice: Choice, piece: Piece) -> bytes:
        item = self._form.chunk(choice, piece)
        if item is None:
            return b""
        fields = {**self._form.envelope(choice, piece), "choices": [item]}
        if self._options.continuous_usage_stats:
            fields["usage"] = self._usage()
        elif self._options.include_usage:
            fields["usage"] = None
        return self._event(fields)

    def _event(self, fields: dict[str, Any]) -> bytes:
        return _sse({**self._head, "object": self._form.chunk_name, **fields})

    def _usage(self) -> dict[str, Any]:
        choices = [timed.choice for timed in self._timed]
        num_prompt = sum(len(command.prompt) for command in self._commands)
        num_output = sum(choice.num_tokens for choice in choices)
        num_cached = sum(
            self._choices[command.request_id, 0].choice.num_cached for command in self._commands
        )
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }
        report = DraftReport()
        for choice in choices:
            report.merge(choice.report)
        if self._has_prediction:
            usage["completion_tokens_details"] = report.prediction_usage()
        if self._frontend.speculates:
            usage["speculative"] = report.usage()
        return usage


class _TimedChoice:
    """A choice with the clock that feeds the metrics."""

    def __init__(self, choice: Choice, arrival_s: float) -> None:
        self.choice = choice
        self._arrival_s = arrival_s
        self._last_s: float | None = None
        self._ended = False

    def observe(self, event: TokenEvent, now_s: float, frontend: Frontend) -> None:
        """Measure an event."""
        metrics = frontend.metrics
        if event.tokens:
            if self._last_s is None:
                metrics.first_token(now_s - self._arrival_s, len(event.tokens), event.num_cached)
            else:
                metrics.further_tokens(now_s - self._last_s, len(event.tokens))
            self._last_s = now_s
        if event.draft is not None:
            metrics.drafted(event.draft, len(event.tokens))
        if event.finish is not None:
            self._ended = True
            num_tokens = event.index + len(event.tokens)
            metrics.choice_ended(event.finish.value, now_s - self._arrival_s, num_tokens)

    def end_unfinished(self, frontend: Frontend) -> None:
        """Count a choice that nobody waits for any more."""
        if not self._ended:
            self._ended = True
            reason = FinishReason.ABORT if frontend.client.death is None else FinishReason.ERROR
            frontend.metrics.choice_ended(reason.value, 0.0, 0)


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
