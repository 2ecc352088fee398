# SPDX-License-Identifier: Apache-2.0
"""The endpoints: each reads its body, lets the other modules work, and returns a response."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from fdspec.entrypoints.openai.body import read_body
from fdspec.entrypoints.openai.cluster import describe_cluster
from fdspec.entrypoints.openai.control import add_control
from fdspec.entrypoints.openai.errors import ApiError, bad_request
from fdspec.entrypoints.openai.forms import ChatForm, CompletionForm, Form
from fdspec.entrypoints.openai.frontend import Frontend
from fdspec.entrypoints.openai.generation import Generation
from fdspec.entrypoints.openai.middleware import REQUEST_ID
from fdspec.entrypoints.openai.params import build_params, check_token_ids
from fdspec.entrypoints.openai.prediction import with_prediction
from fdspec.entrypoints.openai.prompts import (
    Prompt,
    chat_prompt,
    completion_prompts,
    encode,
    render_messages,
)
from fdspec.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from fdspec.entrypoints.openai.schema import json_body
from fdspec.entrypoints.openai.streaming import EventStreamResponse, until_disconnect
from fdspec.version import __version__

MAX_PRIORITY = 2**31 - 1
MAX_NAME_CHARACTERS = 256


def build_router(frontend: Frontend) -> APIRouter:
    """All endpoints of one server."""
    router = APIRouter()
    _add_generation(router, frontend)
    _add_models(router, frontend)
    _add_tokenizer(router, frontend)
    _add_state(router, frontend)
    add_control(router, frontend)
    _answer_head(router)
    return router


def _answer_head(router: APIRouter) -> None:
    """HEAD wherever there is GET, for probes."""
    for route in tuple(router.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            router.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False
            )


def _add_generation(router: APIRouter, frontend: Frontend) -> None:
    @router.post("/v1/chat/completions", openapi_extra=json_body(ChatCompletionRequest))
    async def chat_completions(request: Request) -> Response:
        """Continue a conversation."""
        body = await read_body(request, ChatCompletionRequest)
        frontend.check_model(body.model)
        prompt = await chat_prompt(
            body,
            frontend.tokenizer,
            frontend.limits,
            trust_template=frontend.options.trust_request_chat_template,
        )
        form = ChatForm(body, frontend.token_names, speculates=frontend.speculates)
        return await _generate(request, frontend, body, [prompt], form)

    @router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue texts."""
        body = await read_body(request, CompletionRequest)
        frontend.check_model(body.model)
        prompts = await completion_prompts(body, frontend.tokenizer, frontend.limits)
        form = CompletionForm(
            body, frontend.token_names, frontend.tokenizer, speculates=frontend.speculates
        )
        return await _generate(request, frontend, body, prompts, form)


async def _generate(
    request: Request,
    frontend: Frontend,
    body: ChatCompletionRequest | CompletionRequest,
    prompts: list[Prompt],
    form: Form,
) -> Response:
    _check_common(body)
    if body.request_id is not None:
        request.state.request_id = body.request_id
    params = build_params(body, frontend.tokenizer, frontend.limits)
    params = await with_prediction(params, body, frontend.tokenizer, frontend.limits)
    generation = Generation(
        frontend,
        body,
        params,
        prompts,
        form,
        response_id=request.state.request_id,
        model=frontend.check_model(body.model),
        arrival_s=request.state.arrival_s,
        user=body.user or request.state.key_name,
    )
    if not body.stream:
        return _json(await until_disconnect(request.receive, generation.answer()))
    chunks = generation.chunks()
    first = await until_disconnect(request.receive, anext(chunks))
    return EventStreamResponse(first, chunks)


def _check_common(body: GenerationRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    if body.request_id is not None and not REQUEST_ID.fullmatch(body.request_id):
        raise bad_request(
            "request_id", "request_id must be 1 to 256 printable ASCII characters without blanks"
        )
    if abs(body.priority) > MAX_PRIORITY:
        raise bad_request(
            "priority",
            f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {body.priority}",
        )
    for name in ("user", "cache_salt"):
        length = len(getattr(body, name))
        if length > MAX_NAME_CHARACTERS:
            raise bad_request(
                name, f"{name} has at most {MAX_NAME_CHARACTERS} characters, got {length}"
            )


def _add_models(router: APIRouter, frontend: Frontend) -> None:
    created = int(time.time())
    names = frontend.options.model_names

    def describe(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "fdspec",
            "root": names[0],
            "parent": None,
            "max_model_len": frontend.limits.max_model_len,
        }

    @router.get("/v1/models")
    async def models() -> Response:
        """Names of the model that is served."""
        return _json({"object": "list", "data": [describe(name) for name in names]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """One name."""
        return _json(describe(frontend.check_model(name)))


def _add_tokenizer(router: APIRouter, frontend: Frontend) -> None:
    tokenizer = frontend.tokenizer

    @router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await read_body(request, TokenizeRequest)
        frontend.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("prompt", "give either prompt or messages")
        text = body.prompt
        add_special_tokens = body.add_special_tokens
        if text is None:
            text = render_messages(
                body.messages or [],
                body,
                tokenizer,
                trust_template=frontend.options.trust_request_chat_template,
            )
            add_special_tokens = bool(add_special_tokens)
        token_ids = await encode(
            text, tokenizer, add_special_tokens=add_special_tokens is not False
        )
        names = frontend.token_names
        return _json(
            {
                "count": len(token_ids),
                "max_model_len": frontend.limits.max_model_len,
                "tokens": token_ids,
                "token_strs": [names.chat(token_id) for token_id in token_ids]
                if body.return_token_strs
                else None,
            }
        )

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Text of token ids, special tokens included."""
        body = await read_body(request, DetokenizeRequest)
        frontend.check_model(body.model)
        check_token_ids("tokens", body.tokens, frontend.limits.vocab_size)
        return _json({"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)})


def _add_state(router: APIRouter, frontend: Frontend) -> None:
    @router.get("/health")
    @router.get("/ping")
    @router.post("/ping")
    async def health() -> Response:
        """200 while the engine lives and requests get through to it, else 503.

        A server without an engine is not healthy without the workers that requests need. One with
        an engine is: to start it again would help nobody. It is not while its own engine is silent.
        """
        client = frontend.client
        if client.death is not None:
            raise ApiError(503, f"the engine has ended: {client.death}", code="engine_dead")
        if client.trouble is not None:
            raise ApiError(
                503,
                "the broker of the scheduler topic cannot be reached",
                code="broker_unreachable",
            )
        if client.is_engine_silent:
            raise ApiError(
                503,
                "the scheduler topic does not hear from the engine of this server",
                code="engine_silent",
            )
        if not client.missing_roles:
            return _json({"status": "ok"})
        if not client.has_engine:
            missing = " and no ".join(client.missing_roles)
            raise ApiError(503, f"no {missing} worker is alive on the topic", code="no_worker")
        return _json({"status": "ok", "missing_roles": client.missing_roles})

    @router.get("/v1/cluster")
    async def cluster() -> Response:
        """Queues and workers of the scheduler topic."""
        return _json(describe_cluster(await frontend.client.topic_stats()))

    @router.get("/version")
    async def version() -> Response:
        """Version of the server."""
        return _json({"version": __version__})

    @router.get("/load")
    async def load() -> Response:
        """Generation requests being answered."""
        return _json({"server_load": frontend.num_running})

    @router.get("/metrics")
    async def metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(
            frontend.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
