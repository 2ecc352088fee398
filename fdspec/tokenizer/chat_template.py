# SPDX-License-Identifier: Apache-2.0
"""Renders chat messages into the model's prompt text with its Jinja template, in a sandbox.

Owns the template's environment; never tokenises. Templates come with checkpoints and are not
trusted: they run in jinja2's immutable sandbox. `Tokenizer.apply_chat_template` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fdspec.core.errors import CheckpointError, InvalidParameter


class ChatTemplate:
    """One compiled template.

    Args:
        text: Jinja source with the conventions of Hugging Face (`messages`, `tools`,
            `add_generation_prompt`, `raise_exception`, `strftime_now`, `tojson`, `generation`).
        special_tokens: variables such as `bos_token`.
        source: where the text comes from, for errors.

    Raises:
        CheckpointError: the text is not a valid template.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str], source: str) -> None:
        self.text = text
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"{source}: the chat template is not valid at line {error.lineno}: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt text. Does not modify.

        Args:
            messages: dicts with `role`, `content` and whatever else the template reads.
            add_generation_prompt: end with the start of an assistant message.
            variables: further template variables, such as `tools`; they win over special tokens.

        Raises:
            InvalidParameter: the template refuses the messages or cannot deal with them.
        """
        scope = {"tools": None, "documents": None, **self._special_tokens, **variables}
        try:
            return self._template.render(
                **scope, messages=list(messages), add_generation_prompt=add_generation_prompt
            )
        # A template is a program of the checkpoint: messages that it does not expect surface as
        # any kind of error, and all of them are the request's.
        except Exception as error:
            raise InvalidParameter(
                "messages",
                f"the model's chat template does not accept these messages: {error}",
            ) from error


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; for serving it is only its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    # jinja2's own tojson escapes HTML, which a prompt must not.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
