# SPDX-License-Identifier: Apache-2.0
"""What callers of the offline `LLM` hand in, as lists of the right kinds, or a clear complaint.

Pure functions. Ranges of parameters are checked by SamplingParams itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, cast

import numpy as np

from fdspec.core import InvalidParameter, SamplingParams

Prompt = str | Sequence[int]
"""Text, or token ids."""

Messages = Sequence[Mapping[str, Any]]
"""One conversation: dicts with `role` and `content`."""


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts; a single one counts as a list of one.

    Raises:
        InvalidParameter: something is neither text nor a list of token ids.
    """
    if isinstance(prompts, str) or (_is_list(prompts) and _starts_with_id(prompts)):
        return [cast(Prompt, prompts)]
    _check_list("prompts", prompts, "a text, a list of token ids, or a list of these")
    entries = list(cast(Sequence[Prompt], prompts))
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            _check_list(f"prompts[{index}]", entry, "a text or a list of token ids")
    return entries


def conversation_list(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """The conversations; a single one counts as a list of one.

    Raises:
        InvalidParameter: there is none, or something is no list of messages.
    """
    wanted = "a conversation, such as [{'role': 'user', 'content': 'Hello'}], or a list of them"
    _check_list("messages", messages, wanted)
    if len(messages) == 0:
        raise InvalidParameter("messages", "messages must not be empty")
    is_single = isinstance(messages[0], Mapping)
    conversations = cast(list[Messages], [messages] if is_single else list(messages))
    for index, conversation in enumerate(conversations):
        name = "messages" if is_single else f"messages[{index}]"
        _check_list(name, conversation, "a list of messages")
        if len(conversation) == 0:
            raise InvalidParameter(name, f"{name} must not be empty")
        for number, message in enumerate(conversation):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InvalidParameter(
                    f"{name}[{number}]",
                    f"{name}[{number}] must be a dict with role and content, got {message!r}",
                )
    return conversations


def params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """Parameters for each of `count` prompts.

    Raises:
        InvalidParameter: another kind, or as many as do not belong to the prompts.
    """
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    name = "sampling_params"
    _check_list(name, params, "SamplingParams(...), or a list with one for each prompt")
    if len(params) != count:
        raise InvalidParameter(
            name,
            f"{name} has {len(params)} entries for {count} prompts; give one for all, or one for "
            "each",
        )
    for index, entry in enumerate(params):
        if not isinstance(entry, SamplingParams):
            raise InvalidParameter(
                name, f"{name}[{index}] must be SamplingParams(...), got {_show(entry)}"
            )
    return list(params)


def token_ids(name: str, values: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Token ids as plain integers; numpy's are welcome.

    Raises:
        InvalidParameter: there is none, or one is no id of the vocabulary.
    """
    if len(values) == 0:
        raise InvalidParameter(name, f"{name} has no tokens")
    for value in values:
        is_id = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_id or not 0 <= value < vocab_size:
            raise InvalidParameter(
                name, f"{name}: {value!r} is not a token id in 0..{vocab_size - 1}"
            )
    return tuple(int(value) for value in values)


def _is_list(value: object) -> bool:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_sequence or (isinstance(value, np.ndarray) and value.ndim > 0)


def _starts_with_id(values: Any) -> bool:
    return len(values) > 0 and isinstance(values[0], Integral)


def _check_list(name: str, value: object, wanted: str) -> None:
    if not _is_list(value):
        raise InvalidParameter(
            name.partition("[")[0], f"{name} must be {wanted}, got {_show(value)}"
        )


def _show(value: object) -> str:
    """Kind and beginning of a value."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '...'}"
