# SPDX-License-Identifier: Apache-2.0
"""From a model's name to files on this machine: a local path, or a download from a model hub.

Owns the choice of the hub (environment variable FD_MODEL_SOURCE) and of the files to fetch; never
opens a checkpoint and never imports paddle. What is already there is not fetched again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from fdspec.core.errors import ConfigError
from fdspec.models.hub_http import HubError, HubFiles, fetch_files, list_aistudio, list_modelscope

SOURCE_VARIABLE = "FD_MODEL_SOURCE"
CACHE_VARIABLE = "FD_MODEL_CACHE"
_SOURCES = ("HUGGINGFACE", "MODELSCOPE", "AISTUDIO")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?")
# What a server reads; other formats of the same weights would only take time.
_WANTED = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model")


def resolve_model(name: str | Path, revision: str | None = None) -> Path:
    """Where a model is on this machine, after a download if it is a hub id.

    Args:
        name: local folder or file; or hub id `owner/name`; or `owner/name/file.gguf` for one file
            of a hub repository.
        revision: branch, tag or commit on the hub.

    Raises:
        ConfigError: no such path or model, or the hub cannot be reached; says what to do.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    text = str(name)
    if _looks_like_a_path(path) or not _HUB_ID.fullmatch(text):
        raise ConfigError(f"model {text!r}: no such file or folder{_nearest(path)}")
    owner, repository, *rest = text.split("/", 2)
    return _download(f"{owner}/{repository}", rest[0] if rest else None, revision)


def _looks_like_a_path(path: Path) -> bool:
    """True if the user meant a file: hub owners are not folders of the working directory."""
    if path.is_absolute() or str(path).startswith("."):
        return True
    return len(path.parts) > 1 and Path(path.parts[0]).is_dir()


def _nearest(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (nor is there a folder {str(folder)!r})"
    near = get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    return f" (did you mean {str(folder / near[0])!r}?)" if near else ""


def _download(repository: str, file: str | None, revision: str | None) -> Path:
    source = os.environ.get(SOURCE_VARIABLE, _SOURCES[0]).upper()
    downloads: dict[str, Callable[[str, str | None, str | None], Path]] = {
        "HUGGINGFACE": _from_hugging_face,
        "MODELSCOPE": _from_modelscope,
        "AISTUDIO": _from_aistudio,
    }
    if source not in downloads:
        raise ConfigError(f"{SOURCE_VARIABLE} must be one of {', '.join(_SOURCES)}, got {source!r}")
    try:
        found = downloads[source](repository, file, revision)
    except HubError as error:
        raise ConfigError(
            f"model {repository!r}: not a local path, and the download from {source} "
            f"({SOURCE_VARIABLE}) failed: {error}"
        ) from error
    if found.is_dir() and not any(found.glob("*.safetensors")):
        raise ConfigError(
            f"model {repository!r} on {source} has no safetensors weights; for a GGUF file give "
            f"its name too: {repository}/FILE.gguf"
        )
    return found


def _from_hugging_face(repository: str, file: str | None, revision: str | None) -> Path:
    # Slow to import, and needed for downloads alone.
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # The library reads HF_ENDPOINT when it is imported; this follows it at the time of the call.
    endpoint = os.environ.get("HF_ENDPOINT")
    cache = os.environ.get(CACHE_VARIABLE)
    try:
        if file is not None:
            return Path(
                huggingface_hub.hf_hub_download(
                    repository, file, revision=revision, endpoint=endpoint, cache_dir=cache
                )
            )
        return Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                endpoint=endpoint,
                cache_dir=cache,
                allow_patterns=list(_WANTED),
                ignore_patterns=["*/*", "consolidated*"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise HubError(str(error).strip().splitlines()[0]) from error


def _from_modelscope(repository: str, file: str | None, revision: str | None) -> Path:
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "https://www.modelscope.cn")
    files = list_modelscope(endpoint, repository, revision or "master")
    return _fetch("modelscope", repository, file, files)


def _from_aistudio(repository: str, file: str | None, revision: str | None) -> Path:
    endpoint = os.environ.get("STUDIO_GIT_HOST", "https://git.aistudio.baidu.com")
    files = list_aistudio(endpoint, repository, revision or "master")
    return _fetch("aistudio", repository, file, files)


def _fetch(source: str, repository: str, file: str | None, files: HubFiles) -> Path:
    default = Path.home() / ".cache" / "fdspec" / "models"
    cache = Path(os.environ.get(CACHE_VARIABLE, default)) / source / repository / files.revision
    if file is None:
        wanted = [name for name in files.urls if _is_wanted(name)]
        fetch_files(files, wanted, cache)
        return cache
    if file not in files.urls:
        known = ", ".join(sorted(name for name in files.urls if name.endswith(".gguf"))) or "none"
        raise HubError(f"there is no file {file!r}; GGUF files there: {known}")
    fetch_files(files, [file], cache)
    return cache / file


def _is_wanted(name: str) -> bool:
    at_top = "/" not in name and not name.startswith("consolidated")
    return at_top and any(Path(name).match(pattern) for pattern in _WANTED)
