# SPDX-License-Identifier: Apache-2.0
"""Errors of the HTTP API: one class, one body, `{"error": {message, type, param, code}}`.

Everything that can go wrong in a request ends here; nothing else in the frontend writes an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fdspec.core import EngineDead, FdspecError, InvalidParameter
from fdspec.scheduler.broker.interface import BrokerError
from fdspec.scheduler.topic import NoWorker, OneWorkerOnly, ShuttingDown, TopicBusy
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_LATER = {"Retry-After": "1"}
_AFTER_A_PAUSE = {"Retry-After": "5"}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Paused(FdspecError):
    """The server has been paused, and takes no requests until it is resumed."""


class ApiError(Exception):
    """An answer other than 2xx.

    Args:
        status: HTTP status.
        message: what is wrong and what to do, for the client.
        param: the request's field, as the client spells it.
        code: stable word for programs, such as `model_not_found`.
        headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body, also the payload of an error event in a stream."""
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, fallback),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The HTTP response."""
        return Response(
            msgspec.json.encode(self.body()),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def bad_request(param: str | None, message: str, *, code: str | None = "invalid_value") -> ApiError:
    """A 400 about one field."""
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: Exception) -> ApiError:
    """The answer to any exception; unexpected ones are logged, and their text is not shown."""
    match error:
        case ApiError():
            return error
        case InvalidParameter():
            return bad_request(error.param, error.message)
        case EngineDead():
            return ApiError(500, f"the engine has ended: {error}", code="engine_dead")
        case OneWorkerOnly():
            return ApiError(501, str(error), code="not_implemented")
        case ShuttingDown():
            return ApiError(503, str(error), code="shutting_down")
        case Paused():
            return ApiError(503, str(error), code="paused", headers=_AFTER_A_PAUSE)
        case TopicBusy():
            return ApiError(429, str(error), code="too_many_requests", headers=_LATER)
        case NoWorker():
            return ApiError(503, str(error), code="no_worker", headers=_LATER)
        case BrokerError():
            logger.warning("a request cannot be submitted: %s", error)
            message = "the broker of the scheduler topic cannot be reached; try again later"
            return ApiError(503, message, code="broker_unreachable", headers=_LATER)
        case HTTPException():
            return _http_error(error)
        case ClientDisconnect():
            return ApiError(400, "the client closed the connection", code="disconnected")
    logger.error("a request failed unexpectedly", exc_info=error)
    return ApiError(500, "the server failed to answer this request; see its log", code="internal")


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the application, routing included, use the API's body."""

    async def answer(request: Request, error: Exception) -> Response:
        api_error = as_api_error(error)
        if api_error.status in (404, 405) and isinstance(error, HTTPException):
            api_error.message = f"{api_error.message}: {request.method} {request.url.path}"
        return api_error.response()

    for kind in (
        ApiError,
        InvalidParameter,
        EngineDead,
        ShuttingDown,
        OneWorkerOnly,
        Paused,
        TopicBusy,
        NoWorker,
        BrokerError,
        HTTPException,
        ClientDisconnect,
        Exception,
    ):
        app.add_exception_handler(kind, answer)


def _http_error(error: HTTPException) -> ApiError:
    phrase = HTTPStatus(error.status_code).phrase.lower()
    detail = error.detail if isinstance(error.detail, str) else phrase
    return ApiError(
        error.status_code,
        detail.lower() if detail.lower() == phrase else detail,
        code=phrase.replace(" ", "_"),
        headers=error.headers,
    )
