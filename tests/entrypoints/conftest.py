# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server on loopback around a fake engine, one for a test module."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import httpx
import openai
import pytest
import uvicorn

from fdspec.entrypoints.listener import bind_listener
from fdspec.entrypoints.openai.app import build_app
from fdspec.entrypoints.openai.frontend import Frontend, FrontendOptions
from fdspec.scheduler.topic import InProcessClient, InProcessTopic, Ready
from tests.entrypoints.fake_engine import FakeEngine, Script
from tests.entrypoints.tiny_tokenizer import make_tokenizer

READY = Ready(
    vocab_size=300,
    max_model_len=512,
    num_blocks=64,
    block_size=16,
    max_num_seqs=8,
    speculative_method="fake",
    num_speculative_tokens=4,
    details=(("kv_cache_dtype", "bfloat16"),),
    speculative_methods=("hybrid", "fake"),
)
MODEL = "tiny"


class Server:
    """Uvicorn in a thread, and the fake engine behind it."""

    def __init__(self, options: FrontendOptions, ready: Ready = READY) -> None:
        self.tokenizer = make_tokenizer()
        self.topic = InProcessTopic()
        self.engine = FakeEngine(self.topic, self.tokenizer, ready)
        self.frontend: Frontend
        self._options = options
        self._stack = contextlib.ExitStack()
        self._socket = self._stack.enter_context(bind_listener("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        client = InProcessClient(self.topic)
        self.engine.start()
        await client.wait_ready()
        self.frontend = Frontend(client, self.tokenizer, self._options)
        config = uvicorn.Config(build_app(self.frontend), log_level="error", lifespan="off")
        self._uvicorn = uvicorn.Server(config)
        self._started.set()
        await self._uvicorn.serve(sockets=[self._socket])

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(30)

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join()
        self.engine.stop()
        self._stack.close()

    def reset(self) -> None:
        """Forget what earlier tests did."""
        self.engine.script = Script(self.engine.spell("ok"))
        self.engine.submitted.clear()
        self.engine.aborted.clear()

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    server = Server(FrontendOptions(model_names=(MODEL, "alias/name")))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(module_server: Server) -> Server:
    module_server.reset()
    return module_server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client
