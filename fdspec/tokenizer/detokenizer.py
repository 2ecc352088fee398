# SPDX-License-Identifier: Apache-2.0
"""Turns tokens into text as they arrive.

Owns the bytes of a character that is still incomplete; never looks at stop strings. The frontend
keeps one for each choice, streaming or not, so that both give the same text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence


class Detokenizer:
    """Incremental UTF-8 decoding of one sequence's tokens.

    The pieces that `push` and `flush` return add up to the text of all tokens at once, whatever
    the division into pushes. U+FFFD stands only for bytes that no later token can complete.

    Args:
        token_bytes: bytes of every token id, from `Tokenizer.token_bytes`.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """New text; ids outside the vocabulary have none."""
        return self._decoder.decode(join_bytes(self._token_bytes, token_ids))

    def flush(self) -> str:
        """What is left at the end: U+FFFD if a character stayed incomplete, else nothing."""
        return self._decoder.decode(b"", final=True)


def join_bytes(token_bytes: Sequence[bytes], token_ids: Iterable[int]) -> bytes:
    """Bytes of the tokens in a row; ids outside the table add nothing. Does not modify."""
    size = len(token_bytes)
    return b"".join(token_bytes[token] for token in token_ids if 0 <= token < size)
