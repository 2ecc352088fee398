# SPDX-License-Identifier: Apache-2.0
"""The engine's process: ready, served, ended by a signal; or a reason and exit status 1."""

import asyncio
import dataclasses
import signal
import subprocess
import sys

import msgspec
import pytest

from fdspec.config import config_from_options
from fdspec.core import EngineDead, SamplingParams, Submit
from fdspec.scheduler.topic import LocalTopicClient


@pytest.fixture
def start():
    """Starts engine processes; none outlives the test."""
    processes: list[subprocess.Popen[str]] = []

    def run(endpoint, options):
        config = config_from_options(options).config
        process = subprocess.Popen(
            [sys.executable, "-m", "fdspec.engine.process", "--endpoint", endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config).decode())
        process.stdin.close()
        process.stdin = None
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_serves_until_a_signal(start, smollm2_path):
    async def talk():
        client = LocalTopicClient()
        try:
            process = start(
                client.endpoint,
                {
                    "model": str(smollm2_path),
                    "max_model_len": 128,
                    "num_gpu_blocks_override": 4,
                    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
                },
            )
            ready = await asyncio.wait_for(client.wait_ready(), 120)
            params = SamplingParams(max_tokens=5, temperature=0.0, seed=0)
            stream = await client.submit([Submit("a", (504, 505, 506), params)])
            tokens = [t async for batch in stream for event in batch for t in event.tokens]
            client.release(stream)
            process.send_signal(signal.SIGTERM)
            output, _ = await asyncio.to_thread(process.communicate, timeout=60)
            return ready, tokens, process.returncode, output
        finally:
            client.close()

    ready, tokens, status, output = asyncio.run(talk())
    assert (ready.max_model_len, ready.num_blocks, ready.vocab_size) == (128, 4, 49152)
    assert (ready.speculative_method, ready.num_speculative_tokens) == ("ngram", 3)
    assert len(tokens) == 5 and status == 0
    assert "4 blocks of 64" in output and "Traceback" not in output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "models/nothing.gguf"}, "no such file"),
        ({"max_model_len": 1_000_000}, "max_model_len"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 600},
            "max_num_batched_tokens (600) must be at least max_model_len",
        ),
    ],
)
def test_a_mistake_of_the_user_is_told_without_a_traceback(start, smollm2_path, changes, words):
    async def talk():
        client = LocalTopicClient()
        try:
            process = start(client.endpoint, {"model": str(smollm2_path), **changes})
            with pytest.raises(EngineDead) as caught:
                await asyncio.wait_for(client.wait_ready(), 120)
            output, _ = await asyncio.to_thread(process.communicate, timeout=60)
            return str(caught.value), process.returncode, output
        finally:
            client.close()

    message, status, output = asyncio.run(talk())
    assert words in message and words in output
    assert status == 1 and "Traceback" not in output


def test_the_configuration_survives_the_way_to_the_process():
    options = {
        "model": "m",
        "served_model_name": ["a", "b"],
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 7},
        "gpu_memory_utilization": 0.25,
    }
    config = config_from_options(options).config
    data = msgspec.json.encode(config)
    assert dataclasses.asdict(msgspec.json.decode(data, type=type(config))) == (
        dataclasses.asdict(config)
    )
