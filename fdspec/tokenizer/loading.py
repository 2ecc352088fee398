# SPDX-License-Identifier: Apache-2.0
"""Finds a model's tokenizer files and builds a Tokenizer from them.

Owns which file says what: tokenizer.json, else tokenizer.model; tokenizer_config.json,
generation_config.json, chat_template.jinja, or the metadata of a GGUF file. Never downloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from fdspec.core.errors import CheckpointError
from fdspec.tokenizer.gguf_vocabulary import build_gguf_backend, gguf_special_ids
from fdspec.tokenizer.sentencepiece_backend import add_special_pieces, build_sentencepiece_backend
from fdspec.tokenizer.sentencepiece_model import read_sentencepiece_model
from fdspec.tokenizer.tokenizer import Tokenizer
from fdspec.utils.gguf_header import read_gguf_header
from fdspec.utils.json_file import read_json_object, read_optional_json_object

if TYPE_CHECKING:
    from fdspec.tokenizer.chat_template import ChatTemplate

_NAMED_SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_DEFAULT_TEMPLATE_NAME = "default"
_FOLDER_FILES = ("tokenizer.json", "tokenizer.model")


def load_tokenizer(path: str | Path, chat_template: str | None = None) -> Tokenizer:
    """Build the tokenizer of a model.

    Args:
        path: model folder with `tokenizer.json` or `tokenizer.model`, folder with one GGUF file, or
            a GGUF file.
        chat_template: Jinja text that replaces the model's own template.

    Raises:
        CheckpointError: no tokenizer there, or one of a kind that is not supported.
    """
    location = find_tokenizer(Path(path))
    if location.is_dir():
        return _load_folder(location, chat_template)
    return _load_gguf(location, chat_template)


def find_tokenizer(location: Path) -> Path:
    """The folder with `tokenizer.json` or `tokenizer.model`, or the GGUF file, at a path.

    Raises:
        CheckpointError: there is none of them.
    """
    if location.is_dir() and not any((location / name).exists() for name in _FOLDER_FILES):
        return _only_gguf_file(location)
    if not location.exists():
        raise CheckpointError(f"{location}: no such file or folder")
    return location


def _only_gguf_file(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(f"{folder}: holds several GGUF files, name one of them: {names}")
    raise CheckpointError(f"{folder}: there is no {', no '.join(_FOLDER_FILES)} and no .gguf file")


def _load_gguf(file: Path, chat_template: str | None) -> Tokenizer:
    header = read_gguf_header(file)
    backend = build_gguf_backend(header)
    bos_id, eos_ids, named = gguf_special_ids(header)
    text = chat_template or header.metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=eos_ids,
        chat_template=_compile(text, named, str(file)),
        source=str(file),
    )


def _load_folder(folder: Path, chat_template: str | None) -> Tokenizer:
    config = read_optional_json_object(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").exists():
        backend = _read_pipeline(folder / "tokenizer.json")
    else:
        backend = _read_pieces(folder / "tokenizer.model", config)
    named = _register_specials(backend, config)
    text = chat_template or _read_template(folder, config)
    bos = named.get("bos_token")
    return Tokenizer(
        backend,
        bos_id=backend.token_to_id(bos) if bos else None,
        eos_ids=_read_eos_ids(folder, backend, named),
        chat_template=_compile(text, named, str(folder)),
        source=str(folder),
    )


def _read_pipeline(file: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    # The library raises bare Exception for every kind of damage.
    except Exception as error:
        raise CheckpointError(f"{file}: not a tokenizer that can be read: {error}") from error
    # A file may carry padding and truncation of its training; neither belongs in serving.
    backend.no_padding()
    backend.no_truncation()
    return backend


def _read_pieces(file: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The pipeline of a tokenizer.model; the configuration says whether texts begin with BOS."""
    pieces = read_sentencepiece_model(file)
    backend = build_sentencepiece_backend(pieces)
    add_special_pieces(backend, pieces)
    bos = _token_text(config.get("bos_token"))
    if config.get("add_bos_token") and bos and (bos_id := backend.token_to_id(bos)) is not None:
        backend.post_processor = TemplateProcessing(
            single=[f"{bos}:0", "$A:0"], special_tokens=[(bos, bos_id)]
        )
    return backend


def _compile(text: str | None, named: Mapping[str, str], source: str) -> ChatTemplate | None:
    if not text:
        return None
    # An engine, which has no templates, need not import jinja2.
    from fdspec.tokenizer.chat_template import ChatTemplate

    return ChatTemplate(text, named, source)


def _register_specials(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> dict[str, str]:
    """Make the configuration's special tokens special; returns the named ones."""
    named = {key: content for key in _NAMED_SPECIALS if (content := _token_text(config.get(key)))}
    contents = list(named.values())
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    if isinstance(extra, Mapping):
        named.update({key: text for key, value in extra.items() if (text := _token_text(value))})
        extra = list(extra.values())
    contents += [text for value in extra if (text := _token_text(value))]
    for entry in (config.get("added_tokens_decoder") or {}).values():
        if entry.get("special"):
            contents.append(entry["content"])
        elif backend.token_to_id(entry["content"]) is None:
            backend.add_tokens([tokenizers.AddedToken(**entry)])
    known = {
        added.content for added in backend.get_added_tokens_decoder().values() if added.special
    }
    backend.add_special_tokens([content for content in contents if content not in known])
    return named


def _token_text(value: object) -> str | None:
    """A special token is a string or an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _read_eos_ids(
    folder: Path, backend: tokenizers.Tokenizer, named: Mapping[str, str]
) -> list[int]:
    """generation_config.json says what ends a generation; else config.json; always eos_token."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_optional_json_object(folder / name).get("eos_token_id")
        if value is not None:
            ids = [int(token) for token in (value if isinstance(value, list) else [value])]
            break
    eos = named.get("eos_token")
    if eos is not None and (token := backend.token_to_id(eos)) is not None and token not in ids:
        ids.append(token)
    return ids


def _read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if template is None and (folder / "chat_template.json").exists():
        template = read_json_object(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        return by_name.get(_DEFAULT_TEMPLATE_NAME, next(iter(by_name.values()), None))
    return template
