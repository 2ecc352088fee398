# SPDX-License-Identifier: Apache-2.0
"""Request bodies -> prompts as token ids: strings, ids, lists of either, and chat messages.

Owns what a chat message may look like before the model's template sees it. Called by the routes of
generation and of /tokenize.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fdspec.core import CheckpointError, InvalidParameter
from fdspec.entrypoints.openai.errors import bad_request
from fdspec.entrypoints.openai.params import Limits, check_token_ids
from fdspec.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    TemplateOptions,
)
from fdspec.tokenizer import Tokenizer
from fdspec.tokenizer.chat_template import ChatTemplate

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_PROMPTS = 1024
# Shorter texts take less time to tokenise than to hand to another thread.
_INLINE_CHARACTERS = 4096
_RESERVED_VARIABLES = ("messages", "add_generation_prompt", "chat_template", "tokenize", "self")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        token_ids: at least one, all inside the vocabulary.
        text: what they were made of; None if the client gave ids.
        field: the request's field, for errors.
    """

    token_ids: tuple[int, ...]
    text: str | None
    field: str


async def completion_prompts(
    request: CompletionRequest, tokenizer: Tokenizer, limits: Limits
) -> list[Prompt]:
    """The prompts of a completion request, at least one.

    Raises:
        ApiError: 400; `param` is `prompt` or `prompt_token_ids`.
    """
    if request.prompt_token_ids is not None:
        if request.prompt:
            raise bad_request("prompt_token_ids", "give prompt or prompt_token_ids, not both")
        return [_from_ids("prompt_token_ids", request.prompt_token_ids, limits.vocab_size)]
    prompt = request.prompt
    if prompt is None:
        raise bad_request("prompt", "prompt is required", code="missing_required_parameter")
    entries: Sequence[Any] = [prompt] if isinstance(prompt, str) else prompt
    if not entries:
        raise bad_request("prompt", "prompt must not be empty")
    if all(isinstance(entry, int) for entry in entries):
        return [_from_ids("prompt", entries, limits.vocab_size)]
    if len(entries) > MAX_PROMPTS:
        raise bad_request("prompt", f"at most {MAX_PROMPTS} prompts, got {len(entries)}")
    if all(isinstance(entry, list) for entry in entries):
        return [_from_ids("prompt", entry, limits.vocab_size) for entry in entries]
    if not all(isinstance(entry, str) for entry in entries):
        raise bad_request(
            "prompt",
            "prompt must be a string, a list of strings, a list of token ids, or a list of such "
            "lists; not a mixture",
            code="invalid_type",
        )
    return [
        await _from_text("prompt", text, tokenizer, limits, request.add_special_tokens)
        for text in entries
    ]


async def chat_prompt(
    request: ChatCompletionRequest, tokenizer: Tokenizer, limits: Limits, *, trust_template: bool
) -> Prompt:
    """The prompt of a chat request.

    Raises:
        ApiError, InvalidParameter: 400; `param` names the field.
    """
    if request.prompt_token_ids is not None:
        if request.messages:
            raise bad_request("prompt_token_ids", "give messages or prompt_token_ids, not both")
        return _from_ids("prompt_token_ids", request.prompt_token_ids, limits.vocab_size)
    text = render_messages(request.messages, request, tokenizer, trust_template=trust_template)
    return await _from_text("messages", text, tokenizer, limits, request.add_special_tokens)


def render_messages(
    messages: Sequence[dict[str, Any]],
    options: TemplateOptions,
    tokenizer: Tokenizer,
    *,
    trust_template: bool,
) -> str:
    """The text of a conversation.

    Raises:
        ApiError, InvalidParameter: 400; `param` names the field.
    """
    if not messages:
        raise bad_request("messages", "messages must not be empty")
    checked = [_check_message(index, message) for index, message in enumerate(messages)]
    for name in _RESERVED_VARIABLES:
        if name in options.chat_template_kwargs:
            raise bad_request(
                "chat_template_kwargs",
                f"chat_template_kwargs must not hold {name}; that is not a variable of a template",
            )
    if options.chat_template is None:
        return tokenizer.apply_chat_template(
            checked, options.add_generation_prompt, **options.chat_template_kwargs
        )
    if not trust_template:
        raise bad_request(
            "chat_template",
            "this server does not take templates from requests, because a template can use up its "
            "processor; start it with trust_request_chat_template: true if clients are trusted",
            code="unsupported_parameter",
        )
    template = _request_template(options.chat_template, tokenizer)
    return template.render(
        checked,
        add_generation_prompt=options.add_generation_prompt,
        variables=options.chat_template_kwargs,
    )


def _request_template(text: str, tokenizer: Tokenizer) -> ChatTemplate:
    specials = {
        name: token
        for name, token_id in (
            ("bos_token", tokenizer.bos_id),
            ("eos_token", tokenizer.eos_ids[0] if tokenizer.eos_ids else None),
        )
        if token_id is not None and (token := tokenizer.id_to_token(token_id)) is not None
    }
    try:
        return ChatTemplate(text, specials, "the request")
    except CheckpointError as error:
        raise InvalidParameter("chat_template", str(error)) from error


def _check_message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """One message with its content as a string. Does not modify."""
    param = f"messages[{index}]"
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(
            f"{param}.role", f"{param}.role must be one of {', '.join(ROLES)}, got {role!r}"
        )
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        content = "\n".join(
            text_part(f"{param}.content[{number}]", part) for number, part in enumerate(content)
        )
    if not isinstance(content, str):
        raise bad_request(
            f"{param}.content",
            f"{param}.content must be a string or a list of text parts",
            code="invalid_type",
        )
    # Templates know "system"; "developer" is its newer name.
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def text_part(param: str, part: Any) -> str:
    """The text of one part of a content.

    Raises:
        ApiError: 400; it is no text.
    """
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal") and isinstance(part.get(kind), str):
        text: str = part[kind]
        return text
    raise bad_request(
        param, f'{param} must be {{"type": "text", "text": "..."}}; this model reads text only'
    )


def _from_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> Prompt:
    if not token_ids:
        raise bad_request(param, f"{param} must not be empty")
    for entry in token_ids:
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise bad_request(
                param, f"{param}: token ids must be integers, got {entry!r}", code="invalid_type"
            )
    check_token_ids(param, token_ids, vocab_size)
    return Prompt(tuple(token_ids), None, param)


async def _from_text(
    param: str, text: str, tokenizer: Tokenizer, limits: Limits, add_special_tokens: bool
) -> Prompt:
    if not text:
        raise bad_request(param, f"{param} must not be empty")
    # Characters are at most bytes, and counting them costs nothing.
    if len(text) > limits.max_prompt_bytes:
        raise bad_request(
            param,
            f"the prompt has {len(text)} characters, which is more than the {limits.max_model_len} "
            "tokens of this model's context can hold; shorten the prompt",
            code="context_length_exceeded",
        )
    token_ids = await encode(text, tokenizer, add_special_tokens=add_special_tokens)
    if not token_ids:
        raise bad_request(param, f"{param} has no tokens")
    return Prompt(tuple(token_ids), text, param)


async def encode(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text; a long one is tokenised beside the event loop."""
    if len(text) <= _INLINE_CHARACTERS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)
