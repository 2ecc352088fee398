# SPDX-License-Identifier: Apache-2.0
"""A server that answers like an OpenAI-compatible one, with tokens from nowhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeOpenAI(ThreadingHTTPServer):
    """Records bodies; `refused` prompts get status 400, `broken` ones an error in the stream."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.running = self.most_running = 0
        self.drafted = self.cleared = 0
        self.tokenize_form = "prompt"
        self.plain_letter = "x"
        self.refused = self.broken = "never sent"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def fake_openai() -> Iterator[FakeOpenAI]:
    """A running server, until the block ends."""
    server = FakeOpenAI()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeOpenAI

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": [{"id": "fake"}]}))
        elif self.path == "/metrics":
            drafted = self.server.drafted
            self._send(
                200,
                "# TYPE x:spec_decode_num_draft_tokens_total counter\n"
                f'x:spec_decode_num_draft_tokens_total{{model="fake"}} {drafted}.0\n'
                f"x:spec_decode_num_accepted_tokens_total {drafted // 2}.0\n"
                "x:spec_decode_num_accepted_tokens_per_pos_total 99\n"
                f'x:spec_decode_num_draft_tokens_per_pos_total{{position="0"}} {drafted}\n'
                f'x:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {drafted // 2}\n'
                f'x:spec_decode_num_draft_tokens_per_pos_total{{position="1"}} {drafted}\n'
                f'x:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {drafted // 5}\n',
            )
        else:
            self._send(404, "no such path")

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/cache/clear":
            self.server.cleared += 1
            return self._send(200, "{}")
        if self.path == "/tokenize":
            if self.server.tokenize_form not in body:
                return self._send(400, "unknown field")
            text = body[self.server.tokenize_form]
            return self._send(200, json.dumps({"tokens": list(range(len(text) // 4))}))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        try:
            self._stream(body)
        finally:
            with self.server.lock:
                self.server.running -= 1
                self.server.drafted += 10

    def _stream(self, body: dict[str, Any]) -> None:
        if body.get("prompt") == self.server.refused:
            return self._send(400, json.dumps({"error": {"message": "refused"}}))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if body.get("prompt") == self.server.broken:
            self._event({"error": {"message": "out of luck"}})
        else:
            self._answer(body)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _answer(self, body: dict[str, Any]) -> None:
        count = body["max_tokens"]
        if "messages" in body:
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        letter = self.server.plain_letter if "speculative" in body else "x"
        for _ in range(count):
            piece = {"delta": {"content": letter}} if "messages" in body else {"text": letter}
            self._event({"choices": [{"index": 0, "finish_reason": None, **piece}]})
        self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})

    def _event(self, event: dict[str, Any]) -> None:
        """In two chunks that cut the line."""
        data = f"data: {json.dumps(event)}\n\n".encode()
        self._chunk(data[:9])
        self._chunk(data[9:])

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())
