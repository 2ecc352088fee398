# SPDX-License-Identifier: Apache-2.0
"""The fields of every request body: names, types, defaults. Ranges are checked in `params.py`.

`body.py` turns JSON into these; their JSON schemas are part of /openapi.json. A field that is null
counts as absent.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from msgspec import Struct


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream reports besides text.

    Attributes:
        include_usage: one last chunk without choices holds the usage.
        continuous_usage_stats: every chunk holds the usage so far.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SpeculativeOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Speculation for this request; it can only be less than the server's.

    Attributes:
        enabled: False turns it off.
        method: one of the methods that the server has loaded; "off" turns it off.
        num_speculative_tokens: upper limit of draft tokens in a step; 0 turns it off.
    """

    enabled: bool = True
    method: str | None = None
    num_speculative_tokens: int | None = None


class Prediction(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer is expected to be like: a source of drafts that costs nothing.

    Attributes:
        type: "content".
        content: a text, or a list of text parts.
    """

    type: str = "content"
    content: str | list[Any]


class ModelRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Bodies that name a model; absent means the one that is served."""

    model: str | None = None


class GenerationRequest(ModelRequest, kw_only=True):
    """What both generation endpoints take.

    Names and defaults are OpenAI's where it has them, else those that vLLM and FastDeploy share.
    `metadata` and its like (`IGNORED_FIELDS`) are accepted and have no effect.
    """

    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}
    bad_words: str | list[str] = []
    bad_words_token_ids: list[int | list[int]] = []
    prompt_token_ids: list[int] | None = None
    return_token_ids: bool = False
    priority: int = 0
    user: str = ""
    cache_salt: str = ""
    request_id: str | None = None
    speculative: SpeculativeOptions | None = None
    prediction: Prediction | None = None


class TemplateOptions(Protocol):
    """Fields of a body that say how its messages become a prompt."""

    chat_template: str | None
    chat_template_kwargs: dict[str, Any]
    add_generation_prompt: bool


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = []
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    add_special_tokens: bool = True
    echo: bool = False
    best_of: int | None = None
    logprobs: int | None = None


class TokenizeRequest(ModelRequest, kw_only=True):
    """Body of POST /tokenize: `prompt`, or `messages` with the options of a chat.

    `add_special_tokens` defaults to true for a prompt and to false for messages.
    """

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(ModelRequest, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[int]


class PauseRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/pause; may be left out.

    Attributes:
        mode: what becomes of running requests: `wait` lets them finish and answers then, `abort`
            ends them with an error.
    """

    mode: Literal["wait", "abort"] = "wait"


IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
    }
)
"""OpenAI's fields that concern its platform; they change no answer here."""

UNAVAILABLE_FIELDS: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "structural_tag": (),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields whose feature this server does not have, with the values that ask for nothing."""
