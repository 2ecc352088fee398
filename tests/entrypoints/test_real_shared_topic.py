# SPDX-License-Identifier: Apache-2.0
"""The real model on a shared topic: a worker is killed, and the answers do not change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import httpx
import pytest

from scripts.server_process import ServerProcess, choose_port
from tests.entrypoints.sse import DONE
from tests.entrypoints.topic_world import Broker
from tests.entrypoints.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
REQUESTS = [
    {
        "prompt": "Repeat after me: one two three four five. One two three",
        "max_tokens": 160,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "frequency_penalty": 0.2,
    },
    {
        "prompt": "The old fisherman looked at the sea and",
        "max_tokens": 160,
        "temperature": 0.9,
        "seed": 7,
        "n": 2,
        "ignore_eos": True,
        "logprobs": 0,
    },
    {
        "prompt": "List three colours:",
        "max_tokens": 120,
        "temperature": 0.7,
        "seed": 3,
        "stop": ["\n\n\n"],
    },
]


def start(folder, url, model, *flags):
    port = choose_port()
    command = [sys.executable, "-m", "fdspec.entrypoints.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--scheduler-name", "global"]
    command += ["--scheduler-url", url, "--scheduler-lease", "3", *flags]
    return ServerProcess(command, ROOT, port)


def collect(url, body, found, started=None):
    """What a stream says of each choice: text, logprobs and end."""
    choices: dict[int, list] = {}
    with (
        httpx.Client(timeout=4 * DEADLINE_S) as http,
        http.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as response,
    ):
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line and line != f"data: {DONE}":
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                (choice,) = event["choices"]
                choices.setdefault(choice["index"], []).append(choice)
                if started is not None and len(choices[choice["index"]]) == 15:
                    started.set()
    found.append(
        {
            index: (
                "".join(choice["text"] for choice in parts),
                [
                    entry
                    for choice in parts
                    if choice.get("logprobs")
                    for entry in choice["logprobs"]["token_logprobs"]
                ],
                parts[-1]["finish_reason"],
            )
            for index, parts in choices.items()
        }
    )


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_killed_worker_changes_no_token(smollm2_path):
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    broker = Broker(f"unix://{folder}/b")
    engine = ["--max-model-len", "512", "--num-threads", "1", "--max-num-seqs", "8"]
    engine += ["--speculative-config", json.dumps({"method": "ngram"})]
    try:
        with (
            start(folder, broker.url, smollm2_path, *engine) as _,
            start(folder, broker.url, smollm2_path, "--splitwise-role", "frontend") as frontend,
        ):
            frontend.wait_until_healthy(300)
            expected: list = []
            for body in REQUESTS:
                collect(frontend.url, body, expected)
            # A worker that would give other tokens is not let in.
            with start(
                folder, broker.url, smollm2_path, *engine, "--kv-cache-dtype", "float32"
            ) as x:
                assert x.wait() == 1
                assert "kv_cache_dtype is float32 here but bfloat16 at" in x.log_tail()
            with start(folder, broker.url, smollm2_path, *engine) as second:
                second.wait_until_healthy(300)
                found: list[list] = [[] for _ in REQUESTS]
                started = [threading.Event() for _ in REQUESTS]
                threads = [
                    threading.Thread(target=collect, args=(frontend.url, body, part, event))
                    for body, part, event in zip(REQUESTS, found, started, strict=True)
                ]
                for thread in threads:
                    thread.start()
                assert all(event.wait(DEADLINE_S) for event in started[:2])
                workers = httpx.get(f"{frontend.url}/v1/cluster").json()["workers"]
                busiest = max(workers, key=lambda worker: worker["leased"])
                assert busiest["leased"] > 0
                os.kill(int(busiest["name"].rpartition(":")[2]), signal.SIGKILL)
                for thread in threads:
                    thread.join()
                assert [part[0] for part in found] == expected
                wait_until(
                    lambda: len(httpx.get(f"{frontend.url}/v1/cluster").json()["workers"]) == 1
                )
    finally:
        broker.end(signal.SIGTERM)
        shutil.rmtree(folder)
