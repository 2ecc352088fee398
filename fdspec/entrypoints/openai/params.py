# SPDX-License-Identifier: Apache-2.0
"""Request fields -> SamplingParams, with every range checked under the client's own field names.

Pure functions; called by the serving code before anything is submitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from fdspec.core import InvalidParameter, SamplingParams
from fdspec.entrypoints.openai.errors import bad_request
from fdspec.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)
from fdspec.tokenizer import Tokenizer

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
DEFAULT_COMPLETION_TOKENS = 16
OFF_METHODS = ("off", "naive", "none")


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are checked against.

    Attributes:
        vocab_size: ids 0..vocab_size - 1 exist.
        max_model_len: most tokens of a sequence, prompt and output together.
        max_cached_tokens: tokens that the whole KV cache holds.
        max_prompt_bytes: a longer text has more tokens than fit, whatever it says.
        max_logprobs: most logprobs for a token; -1 is vocab_size.
        num_speculative_tokens: the server's draft length; 0 when speculation is off.
        speculative_methods: proposers that a request may ask for.
    """

    vocab_size: int
    max_model_len: int
    max_cached_tokens: int
    max_prompt_bytes: int
    max_logprobs: int
    num_speculative_tokens: int
    speculative_methods: tuple[str, ...] = ()


def build_params(
    request: ChatCompletionRequest | CompletionRequest, tokenizer: Tokenizer, limits: Limits
) -> SamplingParams:
    """Parameters of the request; `seed` is the client's, `max_tokens` None if left open.

    Raises:
        InvalidParameter: names the client's field.
        ApiError: a 400 that names the client's field.
    """
    names = {"max_tokens": length_field(request), "prompt_logprobs": "logprobs"}
    prompt_logprobs = None
    if isinstance(request, ChatCompletionRequest):
        names["logprobs"] = "top_logprobs"
        max_tokens = _chat_max_tokens(request)
        logprobs = _chat_logprobs(request)
    else:
        max_tokens = _completion_max_tokens(request)
        logprobs = request.logprobs
        prompt_logprobs = request.logprobs if request.echo else None
        _check_best_of(request)
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=_top_k(request.top_k, limits.vocab_size),
        min_p=request.min_p,
        seed=request.seed,
        n=request.n,
        stop=_stop_strings(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        include_stop_str_in_output=request.include_stop_str_in_output,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=_logit_bias(request.logit_bias),
        bad_words_token_ids=_bad_words(request, tokenizer),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        max_draft_tokens=_max_draft_tokens(request, limits),
        draft_method=_draft_method(request, limits),
    )
    try:
        params.validate(vocab_size=limits.vocab_size, max_logprobs=limits.max_logprobs)
    except InvalidParameter as error:
        name = names.get(error.param, error.param)
        message = error.message.replace(error.param, name) if name != error.param else error.message
        raise InvalidParameter(name, message) from None
    return params


def fit_params(
    params: SamplingParams,
    num_prompt: int,
    limits: Limits,
    *,
    prompt_field: str,
    length_field: str,
    fresh_seed: int,
) -> SamplingParams:
    """Resolve `max_tokens` and `seed` for one prompt.

    Args:
        params: as `build_params` made them.
        num_prompt: tokens of the prompt.
        limits: of the engine.
        prompt_field: where the prompt came from, for errors.
        length_field: where max_tokens came from, for errors.
        fresh_seed: key of the noise if the client gave none.

    Raises:
        ApiError: 400 if prompt and output do not fit, with the numbers.
    """
    # The last output token is never an input, so it needs no place in the cache.
    most = min(limits.max_model_len, limits.max_cached_tokens + 1)
    what = f"this model's context is {most} tokens"
    if most < limits.max_model_len:
        what = (
            f"the KV cache of this server holds {limits.max_cached_tokens} tokens, all but the "
            "last one of a request"
        )
    if num_prompt >= most:
        raise bad_request(
            prompt_field,
            f"the prompt has {num_prompt} tokens, but {what}, prompt and output together; shorten "
            "the prompt",
            code="context_length_exceeded",
        )
    max_tokens = most - num_prompt if params.max_tokens is None else params.max_tokens
    if num_prompt + max_tokens > most:
        raise bad_request(
            length_field,
            f"{num_prompt} prompt tokens + {length_field} {max_tokens} = {num_prompt + max_tokens} "
            f"tokens, but {what}; shorten the prompt or ask for at most {most - num_prompt} output "
            "tokens",
            code="context_length_exceeded",
        )
    if params.min_tokens > max_tokens:
        raise bad_request(
            "min_tokens",
            f"min_tokens ({params.min_tokens}) must not exceed the {max_tokens} output tokens "
            "that are left after the prompt",
        )
    seed = fresh_seed if params.seed is None else params.seed
    return dataclasses.replace(params, max_tokens=max_tokens, seed=seed)


def length_field(request: ChatCompletionRequest | CompletionRequest) -> str:
    """The field in which the client said how long an answer may be."""
    if isinstance(request, ChatCompletionRequest):
        return "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    if request.max_tokens is None and request.min_tokens > DEFAULT_COMPLETION_TOKENS:
        return "min_tokens"
    return "max_tokens"


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        ApiError: 400 naming the first wrong id.
    """
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                param,
                f"{param}[{index}]: token id {token_id} is outside the vocabulary "
                f"0..{vocab_size - 1}",
            )


def _check_best_of(request: CompletionRequest) -> None:
    if request.best_of is not None and request.best_of != request.n:
        raise bad_request(
            "best_of",
            f"best_of ({request.best_of}) must equal n ({request.n}): every choice is returned",
        )


def _chat_max_tokens(request: ChatCompletionRequest) -> int | None:
    if request.max_completion_tokens is None:
        return request.max_tokens
    if request.max_tokens not in (None, request.max_completion_tokens):
        raise bad_request(
            "max_tokens",
            f"max_tokens ({request.max_tokens}) and max_completion_tokens "
            f"({request.max_completion_tokens}) differ; give one of them",
        )
    return request.max_completion_tokens


def _completion_max_tokens(request: CompletionRequest) -> int:
    if request.max_tokens is None:
        return max(DEFAULT_COMPLETION_TOKENS, request.min_tokens)
    # max_tokens 0 with echo asks for the prompt alone (and its logprobs): the engine makes one
    # token, which is not shown.
    return 1 if request.max_tokens == 0 and request.echo else request.max_tokens


def _chat_logprobs(request: ChatCompletionRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs is not None:
        raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
    return None


def _top_k(top_k: int, vocab_size: int) -> int:
    """-1 is another way to say "all"; more than the vocabulary is all of it."""
    if top_k < -1:
        raise bad_request("top_k", f"top_k must be at least 1, or 0 or -1 for all, got {top_k}")
    return 0 if top_k == -1 else min(top_k, vocab_size)


def _stop_strings(stop: str | list[str]) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise bad_request("stop", f"at most {MAX_STOP_STRINGS} stop strings, got {len(strings)}")
    for string in strings:
        if len(string) > MAX_STOP_CHARACTERS:
            raise bad_request(
                "stop",
                f"a stop string has at most {MAX_STOP_CHARACTERS} characters, got {len(string)}",
            )
    return strings


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, value in biases.items():
        # str.isdecimal keeps out signs, blanks and underscores, which int() would take.
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise bad_request("logit_bias", f"logit_bias: {key!r} is not a token id")
        pairs.append((int(key), value))
    return tuple(pairs)


def _bad_words(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token sequences of the bad words, each at the start of a text and after a space."""
    sequences: dict[tuple[int, ...], None] = {}
    words = [request.bad_words] if isinstance(request.bad_words, str) else request.bad_words
    for word in words:
        if not word.strip():
            raise bad_request("bad_words", "bad_words must not be empty")
        for text in (word, " " + word.lstrip()):
            sequences[tuple(tokenizer.encode(text, add_special_tokens=False))] = None
    for entry in request.bad_words_token_ids:
        sequences[(entry,) if isinstance(entry, int) else tuple(entry)] = None
    return tuple(sequences)


def _draft_method(request: GenerationRequest, limits: Limits) -> str | None:
    method = None if request.speculative is None else request.speculative.method
    if method is None or method in OFF_METHODS:
        return None
    if method not in limits.speculative_methods:
        loaded = (*limits.speculative_methods, OFF_METHODS[0])
        raise bad_request(
            "speculative.method",
            f"speculative.method must be one of {', '.join(loaded)} on this server, got {method!r}",
        )
    return method


def _max_draft_tokens(request: GenerationRequest, limits: Limits) -> int | None:
    options = request.speculative
    if options is None:
        return None
    if not options.enabled or options.method in OFF_METHODS:
        return 0
    wanted = options.num_speculative_tokens
    return None if wanted is None else min(wanted, limits.num_speculative_tokens)
