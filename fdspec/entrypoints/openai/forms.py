# SPDX-License-Identifier: Apache-2.0
"""Pieces -> the `choices` of a response: how /v1/chat/completions and /v1/completions look.

One form for each request; pure but for the completions' running text offsets. `Generation` calls
them for every piece of a stream, or once for a whole answer.
"""

from __future__ import annotations

from typing import Any, Protocol

from fdspec.entrypoints.openai.choice import Choice, Piece
from fdspec.entrypoints.openai.logprobs import CompletionLogprobs, TokenNames, chat_logprobs
from fdspec.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from fdspec.tokenizer import Tokenizer


class Form(Protocol):
    """How one endpoint shows choices.

    Attributes:
        id_prefix: start of the response's id.
        name: `object` of a whole answer.
        chunk_name: `object` of a chunk.
    """

    id_prefix: str
    name: str
    chunk_name: str

    def whole(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """The item of `choices` for a finished choice."""
        ...

    def chunk(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        """The item of a chunk's `choices`; None if there is nothing to tell."""
        ...

    def envelope(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """Fields beside `choices`."""
        ...


class ChatForm:
    """Form of /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(
        self, request: ChatCompletionRequest, names: TokenNames, *, speculates: bool
    ) -> None:
        self._request = request
        self._names = names
        self._speculates = speculates
        self._has_role: set[int] = set()

    def whole(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """The item of `choices` for a finished choice."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._item(choice, piece, {"message": message})

    def chunk(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        """The item of a chunk's `choices`; None if there is nothing to tell."""
        tells_tokens = self._request.logprobs or self._request.return_token_ids
        if not (piece.text or piece.finish or (tells_tokens and piece.token_ids)):
            return None
        delta: dict[str, Any] = {}
        if choice.index not in self._has_role:
            self._has_role.add(choice.index)
            delta["role"] = "assistant"
        if piece.text or not piece.finish or "role" in delta:
            delta["content"] = piece.text
        return self._item(choice, piece, {"delta": delta})

    def envelope(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """Fields beside `choices`."""
        if self._request.return_token_ids and piece.is_first:
            return {"prompt_token_ids": choice.prompt.token_ids}
        return {}

    def _item(self, choice: Choice, piece: Piece, content: dict[str, Any]) -> dict[str, Any]:
        has_logprobs = self._request.logprobs and piece.token_ids
        item = {
            "index": choice.index,
            **content,
            "logprobs": chat_logprobs(piece.logprobs, self._names) if has_logprobs else None,
            "finish_reason": piece.finish,
        }
        if self._request.return_token_ids:
            item["token_ids"] = piece.token_ids
        return item | _ending(choice, piece, speculates=self._speculates)


class CompletionForm:
    """Form of /v1/completions."""

    id_prefix = "cmpl-"
    name = "text_completion"
    chunk_name = "text_completion"

    def __init__(
        self,
        request: CompletionRequest,
        names: TokenNames,
        tokenizer: Tokenizer,
        *,
        speculates: bool,
    ) -> None:
        self._request = request
        self._names = names
        self._tokenizer = tokenizer
        self._speculates = speculates
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def whole(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """The item of `choices` for a finished choice."""
        request = self._request
        echoes = request.echo and piece.is_first
        item = {
            "index": choice.index,
            "text": self._echoed_text(choice) + piece.text if echoes else piece.text,
            "logprobs": self._token_logprobs(choice, piece, echoes=echoes),
            "finish_reason": piece.finish,
        }
        if request.return_token_ids:
            item["token_ids"] = piece.token_ids
            if piece.is_first:
                item["prompt_token_ids"] = choice.prompt.token_ids
        return item | _ending(choice, piece, speculates=self._speculates)

    def chunk(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        """The item of a chunk's `choices`; None if there is nothing to tell."""
        request = self._request
        tells_tokens = request.logprobs is not None or request.return_token_ids
        echoes = request.echo and piece.is_first
        if not (piece.text or piece.finish or echoes or (tells_tokens and piece.token_ids)):
            return None
        return self.whole(choice, piece)

    def envelope(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """Fields beside `choices`: none."""
        return {}

    def _echoed_text(self, choice: Choice) -> str:
        prompt = choice.prompt
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(
            prompt.token_ids, skip_special_tokens=self._request.skip_special_tokens
        )

    def _token_logprobs(
        self, choice: Choice, piece: Piece, *, echoes: bool
    ) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        if choice.index not in self._logprobs:
            self._logprobs[choice.index] = CompletionLogprobs(
                self._names,
                self._tokenizer,
                skip_special_tokens=self._request.skip_special_tokens,
            )
        prompt_ids = choice.prompt.token_ids if echoes else ()
        prompt_entries = choice.prompt_logprobs if echoes else ()
        return self._logprobs[choice.index].extend(
            prompt_ids + piece.token_ids, prompt_entries + piece.logprobs
        )


def _ending(choice: Choice, piece: Piece, *, speculates: bool) -> dict[str, Any]:
    """What only a choice's last item has."""
    if piece.finish is None:
        return {}
    ending: dict[str, Any] = {"stop_reason": piece.stop_reason}
    if speculates:
        ending["speculate_metrics"] = choice.report.fastdeploy_metrics()
    return ending
