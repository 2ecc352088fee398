# SPDX-License-Identifier: Apache-2.0
"""Puts the ASGI application of one server together. Starts nothing."""

from __future__ import annotations

from fastapi import FastAPI

from fdspec.entrypoints.openai.errors import install_error_handlers
from fdspec.entrypoints.openai.frontend import Frontend
from fdspec.entrypoints.openai.middleware import Gate
from fdspec.entrypoints.openai.routes import build_router
from fdspec.entrypoints.openai.schema import install_schemas
from fdspec.version import __version__


def build_app(frontend: Frontend) -> FastAPI:
    """The application: routes, errors, gate and OpenAPI description."""
    app = FastAPI(title="fdspec", version=__version__)
    app.include_router(build_router(frontend))
    app.add_middleware(Gate, frontend=frontend)
    install_error_handlers(app)
    install_schemas(app)
    return app
