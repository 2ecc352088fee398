# SPDX-License-Identifier: Apache-2.0
"""Reads a request's JSON body into its struct, or says precisely what is wrong with it.

Owns syntax, field names and types; ranges are for `params.py`. Called by every POST route.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from fastapi import Request

from fdspec.entrypoints.openai.errors import ApiError, bad_request
from fdspec.entrypoints.openai.protocol import (
    IGNORED_FIELDS,
    UNAVAILABLE_FIELDS,
    GenerationRequest,
    Prediction,
    SpeculativeOptions,
    StreamOptions,
)

MAX_BODY_BYTES = 64 * 2**20
_JSON_TYPE = re.compile(r"application/(json|[\w.+-]+\+json)\s*(;|$)", re.IGNORECASE)
_LOCATION = re.compile(r" - at `\$(?P<path>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")

_NESTED: dict[str, type[msgspec.Struct]] = {
    "prediction": Prediction,
    "speculative": SpeculativeOptions,
    "stream_options": StreamOptions,
}
_OUT_OF_RANGE = ("Number out of range", "Integer value out of range")
_LONGEST_NUMBER = 300
_LONE_SURROGATE = "half of a surrogate pair (\\ud800 .. \\udfff) stands alone; it is no character"
_HINTS = {"prompt_logprobs": "; use echo and logprobs of /v1/completions"}

Body = TypeVar("Body", bound=msgspec.Struct)


async def read_body(request: Request, kind: type[Body], *, default: bytes = b"") -> Body:
    """The body of a request as `kind`; an empty one counts as `default`.

    Raises:
        ApiError: 400 if it is not JSON of that shape (`param` names the field), 413 if too large.
    """
    content_type = request.headers.get("content-type")
    if content_type is not None and not _JSON_TYPE.match(content_type):
        raise bad_request(
            None,
            f"the Content-Type must be application/json, got {content_type!r}",
            code="invalid_content_type",
        )
    return parse_body(await _read_limited(request) or default, kind)


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """The same for bytes at hand."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        if str(error).startswith(_OUT_OF_RANGE):
            raise _huge_number(data) from error
        reason = _LONE_SURROGATE if _is_json_otherwise(data) else str(error)
        raise bad_request(
            None, f"the body is not valid JSON: {reason}", code="invalid_json"
        ) from error
    if not isinstance(fields, dict):
        raise bad_request(
            None, "the body must be a JSON object, such as {...}", code="invalid_type"
        )
    fields = {name: value for name, value in fields.items() if value is not None}
    _check_names(fields, kind)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _type_error(str(error), kind) from error


async def _read_limited(request: Request) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise ApiError(
                413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _check_names(fields: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Drop fields without effect; refuse those of absent features, and unknown ones."""
    known = set(kind.__struct_fields__)
    if issubclass(kind, GenerationRequest):
        for name in IGNORED_FIELDS & fields.keys():
            del fields[name]
        for name in (UNAVAILABLE_FIELDS.keys() - known) & fields.keys():
            if fields[name] not in UNAVAILABLE_FIELDS[name]:
                raise bad_request(
                    name,
                    f"{name} is not supported by this server; leave it out",
                    code="unsupported_parameter",
                )
            del fields[name]
    _refuse_unknown(fields, kind)
    for name in _NESTED.keys() & known & fields.keys():
        if isinstance(fields[name], dict):
            _refuse_unknown(fields[name], _NESTED[name], prefix=f"{name}.")


def _refuse_unknown(
    fields: dict[str, Any], kind: type[msgspec.Struct], *, prefix: str = ""
) -> None:
    known = kind.__struct_fields__
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            if prefix and not close:
                hint = f"; known fields: {', '.join(sorted(known))}"
            hint = _HINTS.get(name, hint)
            param = prefix + name
            raise bad_request(
                param, f"unrecognized request field: {param}{hint}", code="unknown_parameter"
            )


def _huge_number(data: bytes) -> ApiError:
    """Which number it is that no float can hold; the standard library's reader keeps it."""

    class Huge:
        pass

    def read(text: str) -> object:
        return Huge() if len(text) > _LONGEST_NUMBER or math.isinf(float(text)) else 0

    def find(value: object, path: str) -> str | None:
        if isinstance(value, Huge):
            return path
        items: Iterable[tuple[str, object]] = ()
        if isinstance(value, dict):
            items = ((f"{path}.{key}" if path else key, item) for key, item in value.items())
        elif isinstance(value, list):
            items = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        return next((found for key, item in items if (found := find(item, key))), None)

    try:
        param = find(json.loads(data, parse_float=read, parse_int=read), "")
    except (ValueError, RecursionError):
        param = None
    where = f"{param}: " if param else ""
    return bad_request(param, f"{where}the number is too large", code="invalid_value")


def _is_json_otherwise(data: bytes) -> bool:
    """Whether the standard library reads what msgspec does not: it lets half characters pass."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _type_error(text: str, kind: type[msgspec.Struct]) -> ApiError:
    """msgspec's message, with the field in front as the client would write it."""
    location = _LOCATION.search(text)
    param = location["path"].removeprefix(".") if location else ""
    reason = _LOCATION.sub("", text)
    missing = _MISSING.match(reason)
    if missing:
        param = f"{param}.{missing['name']}".removeprefix(".")
        return bad_request(param, f"{param} is required", code="missing_required_parameter")
    reason = reason[:1].lower() + reason[1:].replace("`", "")
    hint = get_type_hints(kind).get(param)
    if get_origin(hint) is Literal:
        reason += f"; allowed: {', '.join(map(repr, get_args(hint)))}"
    message = f"{param}: {reason}" if param else f"the body is wrong: {reason}"
    return bad_request(param or None, message, code="invalid_type")
