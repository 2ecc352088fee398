# SPDX-License-Identifier: Apache-2.0
"""The bytes that each token id stands for, derived from the tokenizer's decoder.

Owns the inverse of the byte-level alphabet and of SentencePiece's markers; never decodes text.
`Tokenizer` calls it once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from fdspec.core.errors import CheckpointError

_SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """How a tokenizer's decoder turns a vocabulary entry into bytes.

    Attributes:
        byte_level: entries spell bytes in GPT-2's printable alphabet.
        byte_fallback: entries `<0xXX>` are single bytes.
        space_mark: U+2581 is a space.
        strips_first_space: a text's first space is an artefact of encoding.
    """

    byte_level: bool
    byte_fallback: bool
    space_mark: bool
    strips_first_space: bool


def read_decoder_rules(backend: tokenizers.Tokenizer, source: str) -> DecoderRules:
    """What the decoder in tokenizer.json does.

    Raises:
        CheckpointError: the decoder is of a kind whose bytes cannot be told token by token.
    """
    # What the decoder pickles itself as; the whole pipeline's JSON holds the vocabulary, too.
    decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    steps = _flatten(decoder)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return DecoderRules(True, False, False, False)
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        metaspace = [step for step in steps if step["type"] == "Metaspace"]
        return DecoderRules(
            byte_level=False,
            byte_fallback="ByteFallback" in kinds,
            space_mark=bool(metaspace) or any(_is_space_replacement(step) for step in steps),
            strips_first_space=any(_strips_left_space(step) for step in steps)
            or any(step.get("prepend_scheme", "always") != "never" for step in metaspace),
        )
    raise CheckpointError(
        f"{source}: decoder {' + '.join(sorted(kinds)) or 'none'} is not supported; supported: "
        "ByteLevel, or a sequence of Replace, ByteFallback, Fuse, Strip, Metaspace"
    )


def build_byte_table(
    vocabulary: Mapping[str, int], added: Mapping[int, str], rules: DecoderRules
) -> list[bytes]:
    """Bytes of every id; ids without an entry are empty.

    Args:
        vocabulary: ids by entry, added tokens included.
        added: tokens that are their own text whatever the rules, special ones for instance.
        rules: how entries spell bytes.
    """
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    if rules.byte_level:
        _spell_bytes(vocabulary, table)
    else:
        for entry, token in vocabulary.items():
            table[token] = _entry_bytes(entry, rules)
    for token, text in added.items():
        table[token] = text.encode("utf-8")
    return table


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, as character -> byte.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, take the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _spell_bytes(vocabulary: Mapping[str, int], table: list[bytes]) -> None:
    """Fill the table with the bytes of byte-level entries, as many at a time as possible."""
    alphabet = byte_level_alphabet()
    to_bytes = {ord(character): byte for character, byte in alphabet.items()}
    is_spelled = re.compile(f"[{re.escape(''.join(alphabet))}]*").fullmatch
    spelled = []
    for entry, token in vocabulary.items():
        if is_spelled(entry):
            spelled.append((entry, token))
        else:
            table[token] = entry.encode("utf-8")
    # One byte for each character, so that the bytes of all entries are cut where the entries are.
    data = "".join(entry for entry, _ in spelled).translate(to_bytes).encode("latin-1")
    start = 0
    for entry, token in spelled:
        end = start + len(entry)
        table[token] = data[start:end]
        start = end


def _entry_bytes(entry: str, rules: DecoderRules) -> bytes:
    if rules.byte_fallback and (match := _BYTE_TOKEN.fullmatch(entry)):
        return bytes([int(match[1], 16)])
    if rules.space_mark:
        entry = entry.replace(_SPACE_MARK, " ")
    return entry.encode("utf-8")


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def _is_space_replacement(step: dict[str, Any]) -> bool:
    rule = (step["type"], step.get("pattern"), step.get("content"))
    return rule == ("Replace", {"String": _SPACE_MARK}, " ")


def _strips_left_space(step: dict[str, Any]) -> bool:
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
