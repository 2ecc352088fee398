# SPDX-License-Identifier: Apache-2.0
"""Describes request bodies in /openapi.json: the structs' schemas, by reference."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

from fdspec.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    PauseRequest,
    TokenizeRequest,
)

_REFERENCE = "#/components/schemas/{name}"
_BODIES = (
    ChatCompletionRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    PauseRequest,
)


def json_body(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `kind`."""
    schema = {"$ref": _REFERENCE.format(name=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install_schemas(app: FastAPI) -> None:
    """Add the bodies' schemas to what the application describes."""
    describe = app.openapi

    def describe_with_bodies() -> dict[str, Any]:
        document = describe()
        _, schemas = msgspec.json.schema_components(_BODIES, ref_template=_REFERENCE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        return document

    app.openapi = describe_with_bodies  # type: ignore[method-assign]
