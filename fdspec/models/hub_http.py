# SPDX-License-Identifier: Apache-2.0
"""A small client for the file APIs of ModelScope and AI Studio (which is a Gitea).

Owns listing and resumable download over HTTP; knows nothing of models. hub.py calls it. Public
repositories only: there is no login.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_PAGE_ENTRIES = 1000


class HubError(Exception):
    """A hub does not have what is wanted, or does not answer."""


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of one repository at one revision.

    Attributes:
        revision: the revision asked for.
        urls: where each file is, by its path in the repository.
        sha256: checksums, for the files whose hub states one.
    """

    revision: str
    urls: Mapping[str, str]
    sha256: Mapping[str, str] = field(default_factory=dict)


def list_modelscope(endpoint: str, repository: str, revision: str) -> HubFiles:
    """Files of a ModelScope repository.

    Raises:
        HubError: no such repository or revision, or no answer.
    """
    base = f"{endpoint.rstrip('/')}/api/v1/models/{urllib.parse.quote(repository)}/repo"
    query = urllib.parse.urlencode({"Revision": revision, "Recursive": "true"})
    answer = _get_json(f"{base}/files?{query}")
    entries = (answer.get("Data") or {}).get("Files") or []
    files = [entry for entry in entries if entry.get("Type") != "tree"]

    def url(path: str) -> str:
        query = urllib.parse.urlencode({"Revision": revision, "FilePath": path})
        return f"{base}?{query}"

    return HubFiles(
        revision,
        {_safe(entry["Path"]): url(entry["Path"]) for entry in files},
        {entry["Path"]: entry["Sha256"] for entry in files if entry.get("Sha256")},
    )


def list_aistudio(endpoint: str, repository: str, revision: str) -> HubFiles:
    """Files of an AI Studio repository.

    Raises:
        HubError: no such repository or revision, or no answer.
    """
    base = f"{endpoint.rstrip('/')}/api/v1/repos/{urllib.parse.quote(repository)}"
    ref = urllib.parse.quote(revision, safe="")
    urls: dict[str, str] = {}
    page = 1
    while True:
        answer = _get_json(
            f"{base}/git/trees/{ref}?recursive=true&page={page}&per_page={_PAGE_ENTRIES}"
        )
        for entry in answer.get("tree") or []:
            if entry.get("type", "blob") == "blob":
                path = urllib.parse.quote(entry["path"], safe="")
                urls[_safe(entry["path"])] = f"{base}/media/{path}?ref={ref}"
        if not answer.get("truncated"):
            return HubFiles(revision, urls)
        page += 1


def fetch_files(files: HubFiles, names: Sequence[str], folder: Path) -> None:
    """Download files into a folder, with a progress bar; files that are there are left alone.

    A file appears under its name only when it is complete; an interrupted one goes on where it
    stopped.

    Raises:
        HubError: a download failed, or a checksum differs.
    """
    for name in names:
        target = folder / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        _download(files.urls[name], part, name)
        expected = files.sha256.get(name)
        if expected is not None and (found := _sha256(part)) != expected:
            part.unlink()
            raise HubError(f"{name}: the checksum is {found}, the hub says {expected}")
        os.replace(part, target)


def _download(url: str, part: Path, name: str) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            # A server that ignores the range sends the file from its start.
            resumes = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            done = done if resumes else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else done + int(length)
            with (
                part.open("ab" if resumes else "wb") as file,
                tqdm(total=total, initial=done, desc=name, unit="B", unit_scale=True) as bar,
            ):
                while chunk := answer.read(_CHUNK_BYTES):
                    file.write(chunk)
                    bar.update(len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # The part is whole already: only its renaming was missing.
            return
        raise HubError(f"{url}: HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise HubError(f"{url}: {error}") from error
    if total is not None and (size := part.stat().st_size) != total:
        raise HubError(f"{url}: got {size} of {total} bytes; run again to go on")


def _get_json(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            value = json.load(answer)
    except urllib.error.HTTPError as error:
        raise HubError(f"{url}: HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HubError(f"{url}: {error}") from error
    if not isinstance(value, dict):
        raise HubError(f"{url}: expected a JSON object")
    return value


def _safe(path: str) -> str:
    """The path, if it stays inside its folder: it names files on this machine."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise HubError(f"the hub lists a file outside the repository: {path!r}")
    return path


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
