# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 client for load generation: one connection a request, bodies as they arrive.

On a machine with few cores the client competes with the server it measures; this one needs some
twenty microseconds an event, a tenth of what general clients do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

_READ_BYTES = 1 << 16


class HTTPError(Exception):
    """No answer, or one with another status than 200; the message says which and why."""


async def get_text(url: str, headers: Mapping[str, str] | None = None) -> str:
    """The body of a GET.

    Raises:
        HTTPError: see there.
    """
    async with _request("GET", url, None, headers or {}) as body:
        return b"".join([part async for part in body]).decode()


async def post_json(url: str, body: object, headers: Mapping[str, str] | None = None) -> Any:
    """The parsed answer to a POST.

    Raises:
        HTTPError: see there.
    """
    async with _request("POST", url, body, headers or {}) as parts:
        return json.loads(b"".join([part async for part in parts]))


async def post_events(
    url: str, body: object, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[bytes, None]:
    """The data of the server-sent events that answer a POST, each as soon as it is there.

    Raises:
        HTTPError: see there.
    """
    async with _request("POST", url, body, headers or {}) as parts:
        rest = b""
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()


@asynccontextmanager
async def _request(
    method: str, url: str, body: object, headers: Mapping[str, str]
) -> AsyncIterator[AsyncIterator[bytes]]:
    address = urlsplit(url)
    is_tls = address.scheme == "https"
    port = address.port or (443 if is_tls else 80)
    try:
        reader, writer = await asyncio.open_connection(address.hostname, port, ssl=is_tls or None)
    except OSError as error:
        raise HTTPError(f"{url}: cannot connect ({error})") from None
    try:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {address.path or '/'} HTTP/1.1",
            f"Host: {address.netloc}",
            "Connection: close",
            f"Content-Length: {len(content)}",
            "Content-Type: application/json",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        status, answer_headers = await _read_head(reader, url)
        parts = _body(reader, answer_headers)
        if status != 200:
            text = b"".join([part async for part in parts]).decode(errors="replace")
            raise HTTPError(f"{url}: status {status}: {text[:500]}")
        yield parts
    except (OSError, asyncio.IncompleteReadError) as error:
        raise HTTPError(f"{url}: the connection broke ({error})") from None
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader, url: str) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    words = head[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise HTTPError(f"{url}: does not speak HTTP, it answers {head[0]!r}")
    pairs = (line.partition(":") for line in head[1:] if line)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        return
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left is None or left > 0:
        part = await reader.read(_READ_BYTES)
        if not part:
            if left:
                raise asyncio.IncompleteReadError(b"", left)
            return
        if left is not None:
            left -= len(part)
        yield part
