# SPDX-License-Identifier: Apache-2.0
"""RequestOutput: what the offline `LLM` returns for one prompt.

Plain frozen values and the rule that turns a finished choice into text. Made by `llm.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fdspec.core import FinishReason, SamplingParams, TokenEvent, TokenLogprob
from fdspec.entrypoints.openai.draft_report import DraftCounts
from fdspec.entrypoints.openai.output_text import OutputText
from fdspec.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """What speculation did for one choice.

    Attributes:
        num_drafted: draft tokens that were verified.
        num_accepted: of those, how many were accepted and kept.
        num_steps: steps that gave tokens.
        by_source: (drafted, accepted) tokens of each proposer.
        per_position: (drafts that had a token there, drafts that had one there accepted) by the
            position in the draft; in a tree, by the depth.
    """

    num_drafted: int
    num_accepted: int
    num_steps: int
    by_source: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    per_position: tuple[tuple[int, int], ...] = ()

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens; 0 if none was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice.

    Attributes:
        index: 0..n-1.
        text: decoded output, without special tokens, cut before the stop string that ended it.
        token_ids: all output tokens, those that ended it included.
        logprobs: one for each token if requested.
        finish_reason: "stop" or "length".
        stop_reason: the stop string or token id that ended it; None for EOS and length.
        draft: what speculation did.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: str
    stop_reason: int | str | None
    draft: DraftTotals


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt.

    Attributes:
        prompt: its text; None if it was given as token ids.
        prompt_token_ids: its tokens.
        prompt_logprobs: None for the first token, then one for each; None if not requested.
        outputs: the n choices.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    outputs: tuple[CompletionOutput, ...]


def completion_output(
    events: Sequence[TokenEvent], params: SamplingParams, tokenizer: Tokenizer
) -> CompletionOutput:
    """A finished choice from its events.

    Args:
        events: all events of the choice, in order; the last one has a finish reason.
        params: of its request.
        tokenizer: of the model.
    """
    last = events[-1]
    assert last.finish is not None
    tokens = tuple(token for event in events for token in event.tokens)
    logprobs = None
    if params.logprobs is not None:
        logprobs = tuple(entry for event in events for entry in event.logprobs or ())
    drafts = DraftCounts()
    for event in events:
        if event.draft is not None:
            drafts.add(event.draft)
    return CompletionOutput(
        last.choice,
        _text(tokens, last, params, tokenizer),
        tokens,
        logprobs,
        last.finish.value,
        last.stop_reason,
        DraftTotals(
            drafts.num_drafted,
            drafts.num_accepted,
            len(events),
            drafts.by_source,
            tuple(zip(drafts.drafted, drafts.accepted, strict=True)),
        ),
    )


def _text(
    tokens: tuple[int, ...], last: TokenEvent, params: SamplingParams, tokenizer: Tokenizer
) -> str:
    decoder = tokenizer.detokenizer()
    include = params.include_stop_str_in_output
    if isinstance(last.stop_reason, str):
        output = OutputText(params.stop)
        shown = output.push(decoder.push(tokens[:-1]))
        ending = decoder.push(tokens[-1:]) + decoder.flush()
        return shown + output.stop(ending, last.stop_reason, include=include)
    if last.finish is FinishReason.STOP and not include:
        # EOS or a stop token: counted, but no part of the text.
        tokens = tokens[:-1]
    return decoder.push(tokens) + decoder.flush()
