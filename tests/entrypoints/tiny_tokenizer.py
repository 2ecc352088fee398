# SPDX-License-Identifier: Apache-2.0
"""A tokenizer small enough to read: every byte is a token, then some merges, then two specials."""

import json
from pathlib import Path

import tokenizers

from fdspec.tokenizer import Tokenizer
from fdspec.tokenizer.byte_table import byte_level_alphabet
from fdspec.tokenizer.chat_template import ChatTemplate

SPECIALS = ("<|end|>", "<|start|>")
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    "{% if shout %}!{% endif %}"
)


def make_backend() -> tokenizers.Tokenizer:
    """Ids 0..255 are the bytes."""
    alphabet = byte_level_alphabet()
    vocabulary = dict(alphabet)
    by_byte = {byte: character for character, byte in alphabet.items()}
    space = by_byte[0x20]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), (space, "w"), ("o", "r")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    return backend


def make_tokenizer() -> Tokenizer:
    backend = make_backend()
    eos_id = backend.token_to_id(SPECIALS[0])
    assert eos_id is not None
    return Tokenizer(
        backend,
        bos_id=None,
        eos_ids=[eos_id],
        chat_template=ChatTemplate(TEMPLATE, {}, "test"),
        source="test",
    )


def save_tokenizer(folder: Path) -> None:
    """The same tokenizer as the files of a model."""
    make_backend().save(str(folder / "tokenizer.json"))
    config = {"eos_token": SPECIALS[0], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
