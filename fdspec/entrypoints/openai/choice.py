# SPDX-License-Identifier: Apache-2.0
"""One choice while it is generated: token events in, pieces of text out.

Owns the choice's decoder and hold-back; knows nothing of JSON. Streaming sends each piece, a whole
answer joins them, so that both have the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fdspec.core import FinishReason, SamplingParams, TokenEvent, TokenLogprob
from fdspec.entrypoints.openai.draft_report import DraftReport
from fdspec.entrypoints.openai.errors import ApiError
from fdspec.entrypoints.openai.output_text import OutputText
from fdspec.entrypoints.openai.prompts import Prompt
from fdspec.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What events added to a choice.

    Attributes:
        text: text that may be shown now.
        token_ids: new tokens; their text may still be held back.
        logprobs: one for each token if requested.
        finish: OpenAI's finish_reason, on the last piece.
        stop_reason: stop string or token id that ended the choice.
        is_first: nothing came before.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    stop_reason: int | str | None = None
    is_first: bool = False


class Choice:
    """State of one choice.

    Args:
        index: its number in the response.
        prompt: what it continues.
        params: of its request.
        tokenizer: of the model.
        skip_special_tokens: leave special tokens out of the text.
        prompt_only: the client asked for the echoed prompt and no output.

    Attributes:
        num_tokens: output tokens so far.
        report: what speculation did.
        num_cached: prompt tokens that needed no computation.
        prompt_logprobs: one for each prompt token if requested; the first is None.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        prompt_only: bool,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.num_tokens = 0
        self.report = DraftReport()
        self.num_cached = 0
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self._include_stop = params.include_stop_str_in_output
        self._prompt_only = prompt_only
        self._is_first = True
        self._decoder = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
        self._text = OutputText(params.stop)

    def take(self, event: TokenEvent) -> Piece:
        """What an event adds.

        Raises:
            ApiError: the choice ended because something failed.
        """
        if event.finish is FinishReason.ERROR:
            raise ApiError(500, event.error or "the engine failed", code="engine_error")
        if event.finish is FinishReason.ABORT:
            raise ApiError(503, "the request was aborted", code="aborted")
        is_first, self._is_first = self._is_first, False
        if is_first:
            self.num_cached = event.num_cached
            self.prompt_logprobs = event.prompt_logprobs or ()
        if self._prompt_only:
            return Piece("", (), finish=event.finish and "length", is_first=is_first)
        assert event.index == self.num_tokens, "events of a choice are contiguous"
        self.num_tokens += len(event.tokens)
        self.report.count(event)
        return Piece(
            self._advance(event),
            event.tokens,
            event.logprobs or (),
            event.finish and event.finish.value,
            event.stop_reason,
            is_first,
        )

    def _advance(self, event: TokenEvent) -> str:
        """Text that this event lets out."""
        tokens = event.tokens
        if event.finish is None:
            return self._text.push(self._decoder.push(tokens))
        if isinstance(event.stop_reason, str):
            shown = self._text.push(self._decoder.push(tokens[:-1]))
            last = self._decoder.push(tokens[-1:]) + self._decoder.flush()
            return shown + self._text.stop(last, event.stop_reason, include=self._include_stop)
        if event.finish is FinishReason.STOP and not self._include_stop:
            # The last token is EOS or a stop token: counted, but no part of the text.
            tokens = tokens[:-1]
        shown = self._text.push(self._decoder.push(tokens) + self._decoder.flush())
        return shown + self._text.flush()


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """All pieces of a choice as one."""
    last = pieces[-1]
    return Piece(
        "".join(piece.text for piece in pieces),
        tuple(token_id for piece in pieces for token_id in piece.token_ids),
        tuple(entry for piece in pieces for entry in piece.logprobs),
        last.finish,
        last.stop_reason,
        is_first=True,
    )
