# SPDX-License-Identifier: Apache-2.0
"""TokenLogprobs -> the JSON of both endpoints.

Tokens are shown by their bytes, so that a token that is part of a character is told from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fdspec.core import TokenLogprob
from fdspec.tokenizer import Tokenizer


class TokenNames:
    """How single tokens are shown.

    Args:
        tokenizer: of the model that is served.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes(skip_special_tokens=False)

    def raw(self, token_id: int) -> bytes:
        """UTF-8 bytes of a token, special ones as their text; empty for padding ids."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def chat(self, token_id: int) -> str:
        """Text; bytes that are no whole character as \\xNN."""
        raw = self.raw(token_id)
        return raw.decode("utf-8", errors="backslashreplace") if raw else f"token_id:{token_id}"

    def completion(self, token_id: int) -> str:
        """Text, or `bytes:\\xNN...` if the bytes are no whole characters."""
        raw = self.raw(token_id)
        if not raw:
            return f"token_id:{token_id}"
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(entries: Iterable[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """`choices[].logprobs` of a chat: one item for each token."""
    return {
        "content": [
            {
                **_chat_entry(entry.token_id, entry.logprob, names),
                "top_logprobs": [
                    _chat_entry(token_id, logprob, names) for token_id, logprob in entry.top
                ],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_entry(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {
        "token": names.chat(token_id),
        "logprob": finite(logprob),
        "bytes": list(names.raw(token_id)),
    }


class CompletionLogprobs:
    """Builds `choices[].logprobs` of completions, piece by piece.

    Args:
        names: how tokens are shown.
        tokenizer: for the offsets of tokens in the text.
        skip_special_tokens: as in the text.
    """

    def __init__(
        self, names: TokenNames, tokenizer: Tokenizer, *, skip_special_tokens: bool
    ) -> None:
        self._names = names
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def extend(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]
    ) -> dict[str, Any]:
        """The object for these tokens; an entry is None for the first token of a prompt."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.push([token_id]))
        return {
            "text_offset": offsets,
            "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
            "tokens": [self._names.completion(token_id) for token_id in token_ids],
            "top_logprobs": [self._top(entry) for entry in entries],
        }

    def _top(self, entry: TokenLogprob | None) -> dict[str, float] | None:
        """The most likely tokens, and the token itself if it is not among them."""
        if entry is None:
            return None
        pairs = (*entry.top, (entry.token_id, entry.logprob))
        return {self._names.completion(token_id): finite(value) for token_id, value in pairs}


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999.0."""
    return max(logprob, -9999.0)
