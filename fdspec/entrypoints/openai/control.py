# SPDX-License-Identifier: Apache-2.0
"""Endpoints for whoever runs the server: pause, resume, clear the prefix cache.

A pause is the frontend's: new generation requests are refused, and the engine goes on with those
that it has.
"""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from fdspec.entrypoints.openai.body import read_body
from fdspec.entrypoints.openai.errors import Paused
from fdspec.entrypoints.openai.frontend import Frontend
from fdspec.entrypoints.openai.protocol import PauseRequest
from fdspec.entrypoints.openai.schema import json_body
from fdspec.entrypoints.openai.streaming import until_disconnect

_POLL_S = 0.02


def add_control(router: APIRouter, frontend: Frontend) -> None:
    """Add the endpoints to a router."""

    @router.post("/v1/pause", openapi_extra=json_body(PauseRequest))
    async def pause(request: Request) -> Response:
        """Refuse new generation requests from now on."""
        body = await read_body(request, PauseRequest, default=b"{}")
        frontend.is_paused = True
        num_running = frontend.num_running
        if body.mode == "abort":
            frontend.client.fail_streams(Paused("the server was paused and ended this request"))
        await until_disconnect(request.receive, _drain(frontend))
        return _answer(frontend, {f"num_{_OUTCOMES[body.mode]}": num_running})

    @router.post("/v1/resume")
    async def resume() -> Response:
        """Take generation requests again."""
        frontend.is_paused = False
        return _answer(frontend, {})

    @router.post("/v1/cache/clear")
    @router.post("/reset_prefix_cache", include_in_schema=False)
    async def clear_cache(request: Request) -> Response:
        """Forget the KV of ended requests; running ones keep theirs."""
        num_blocks = await until_disconnect(request.receive, frontend.client.clear_cache())
        return _json({"num_blocks": num_blocks})

    @router.get("/v1/is_paused")
    async def is_paused() -> Response:
        """Whether the server is paused."""
        return _answer(frontend, {})


_OUTCOMES = {"wait": "finished", "abort": "aborted"}


async def _drain(frontend: Frontend) -> None:
    """Wait until no generation request runs, or somebody resumes the server."""
    while frontend.is_paused and frontend.num_running > 0:
        await asyncio.sleep(_POLL_S)


def _answer(frontend: Frontend, counts: dict[str, int]) -> Response:
    return _json({"is_paused": frontend.is_paused, "num_running": frontend.num_running, **counts})


def _json(body: dict[str, int | bool]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
