# SPDX-License-Identifier: Apache-2.0
"""What every request passes first: its id, the API key, and the limit of requests at once.

Plain ASGI, so that streams pass without a copy. `app.py` wraps the application in it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdspec.entrypoints.openai.errors import ApiError, Paused, as_api_error
from fdspec.entrypoints.openai.frontend import Frontend

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics", "/load"})
GENERATION_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
REQUEST_ID = re.compile(r"[!-~]{1,256}")
_RETRY_AFTER_S = 1


class Gate:
    """Middleware around the application.

    `scope["state"]["request_id"]` is the client's X-Request-Id or a fresh one; routes may replace
    it, and the response carries it. `arrival_s` beside it is the start of all latencies, and
    `key_name` says which of the server's keys the request carries ("" without keys).

    Args:
        app: what is behind.
        frontend: for the keys, the limit and the count.
    """

    def __init__(self, app: ASGIApp, frontend: Frontend) -> None:
        self._app = app
        self._frontend = frontend
        self._keys = [_digest(key.encode()) for key in frontend.options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["arrival_s"] = time.monotonic()
        request_id = headers.get("x-request-id", "")
        state["request_id"] = request_id if REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"])["X-Request-Id"] = state["request_id"]
            await send(message)

        number = self._key_number(headers)
        state["key_name"] = "" if number is None else f"key {number}"
        refusal = self._refusal(scope, knows_key=number is not None)
        if refusal is not None:
            await refusal.response()(scope, receive, send_with_id)
        elif _generates(scope):
            self._frontend.num_running += 1
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._frontend.num_running -= 1
        else:
            await self._app(scope, receive, send_with_id)

    def _refusal(self, scope: Scope, *, knows_key: bool) -> ApiError | None:
        if self._keys and scope["path"] not in OPEN_PATHS and not knows_key:
            return ApiError(
                401,
                "a valid API key is needed: send the header 'Authorization: Bearer <key>'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if _generates(scope) and self._frontend.is_paused:
            return as_api_error(Paused("the server is paused; try again once it is resumed"))
        limit = self._frontend.options.max_concurrency
        if _generates(scope) and self._frontend.num_running >= limit:
            return ApiError(
                429,
                f"{limit} requests are running already (max_concurrency); try again later",
                code="too_many_requests",
                headers={"Retry-After": str(_RETRY_AFTER_S)},
            )
        return None

    def _key_number(self, headers: Headers) -> int | None:
        """Which key it is. Compares with every one, in a time that tells nothing about them."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        # Header values arrive as Latin-1, whatever they are.
        given = _digest(key.strip().encode("latin-1"))
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        return matches.index(True) if scheme.lower() == "bearer" and any(matches) else None


def _generates(scope: Scope) -> bool:
    return scope["path"] in GENERATION_PATHS and scope["method"] == "POST"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
