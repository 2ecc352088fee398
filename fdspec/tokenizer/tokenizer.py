# SPDX-License-Identifier: Apache-2.0
"""Tokenizer: one model's vocabulary, special tokens and chat template.

Owns the mapping between text, token ids and bytes; never reads files (loading.py does) and never
imports paddle. Frontend, engine and the offline LLM use it. All methods are thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tokenizers

from fdspec.core.errors import InvalidParameter
from fdspec.tokenizer.byte_table import build_byte_table, read_decoder_rules
from fdspec.tokenizer.detokenizer import Detokenizer, join_bytes

if TYPE_CHECKING:
    from fdspec.tokenizer.chat_template import ChatTemplate


class Tokenizer:
    """Text to ids and back.

    Args:
        backend: the `tokenizers` pipeline, special tokens registered.
        bos_id: id of the beginning-of-sequence token, None if the model has none.
        eos_ids: ids that end a generation.
        chat_template: how messages become a prompt, None if the model has no template.
        source: the file it came from, for errors.

    Attributes:
        vocab_size: one more than the largest id; the model's logits may be wider (padding).
        special_ids: ids of special tokens, which `decode` leaves out by default.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None,
        eos_ids: Sequence[int],
        chat_template: ChatTemplate | None,
        source: str,
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._source = source
        self._rules = read_decoder_rules(backend, source)
        added = backend.get_added_tokens_decoder()
        self._bytes = build_byte_table(
            backend.get_vocab(with_added_tokens=True),
            {token: entry.content for token, entry in added.items()},
            self._rules,
        )
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._text_bytes = [
            b"" if token in self.special_ids else piece for token, piece in enumerate(self._bytes)
        ]
        self.vocab_size = len(self._bytes)
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)

    @property
    def has_chat_template(self) -> bool:
        """True if `apply_chat_template` can work."""
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens that are spelled out in it become their ids.

        Args:
            text: any text without lone surrogates.
            add_special_tokens: add what the model puts around a text, such as BOS. False for text
                that `apply_chat_template` rendered: it has them already.

        Raises:
            InvalidParameter: the text cannot be written as UTF-8.
        """
        try:
            # The batch call lets other threads run meanwhile; the single one holds the GIL.
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        # What the library raises for a string that has no UTF-8 form depends on its version.
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidParameter(
                "prompt", "the text holds a lone surrogate, which is not valid Unicode"
            ) from error
        return list(encoding.ids)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of whole token ids, as a text of its own.

        Incomplete characters become U+FFFD; ids outside the vocabulary have no text. SentencePiece
        models put a space before the first word when they encode; it is taken off again here. Text
        that continues a prompt keeps it: use a `Detokenizer`, also when not streaming.
        """
        data = join_bytes(self.token_bytes(skip_special_tokens=skip_special_tokens), token_ids)
        if self._rules.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, skip_special_tokens: bool = True) -> list[bytes]:
        """Bytes of every id in 0 .. vocab_size - 1; shared, not to be changed.

        Args:
            skip_special_tokens: special tokens are b""; else they are their own text.
        """
        return self._text_bytes if skip_special_tokens else self._bytes

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental decoder for one sequence."""
        return Detokenizer(self.token_bytes(skip_special_tokens=skip_special_tokens))

    def token_to_id(self, token: str) -> int | None:
        """Id of a vocabulary entry as the tokenizer spells it, None if there is none."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        """Vocabulary entry of an id as the tokenizer spells it, None if there is none."""
        if not 0 <= token_id < self.vocab_size:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """Prompt text of a conversation; encode it with `add_special_tokens=False`.

        Args:
            messages: dicts with `role` and `content`.
            add_generation_prompt: end with the start of an assistant message.
            template_kwargs: variables of the template, such as `tools` or `enable_thinking`. The
                one open-ended interface here: each template has its own names.

        Raises:
            InvalidParameter: the model has no template, or it does not accept the messages.
        """
        if self._chat_template is None:
            raise InvalidParameter(
                "messages",
                f"the model has no chat template ({self._source}): use /v1/completions, or give "
                "a template to the server",
            )
        return self._chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, variables=template_kwargs
        )
