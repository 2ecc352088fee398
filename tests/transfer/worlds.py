# SPDX-License-Identifier: Apache-2.0
"""Caches with known bytes, and the processes at both ends of a handoff."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fdspec.kv.cache import KVCache, KVCacheLayout
from fdspec.transfer import KVLayout, Offer, SinkOptions, TransportOptions, decode_offer
from fdspec.utils.child_process import die_with_parent

ROOT = Path(__file__).parents[2]
NUM_LAYERS = 3


def cache_of(dtype: str, num_blocks: int) -> KVCache:
    return KVCache(KVCacheLayout(NUM_LAYERS, 2, 8, 4, dtype), num_blocks)


def layout_of(cache: KVCache, **changes: Any) -> KVLayout:
    shape = cache.layout
    values: dict[str, Any] = {
        "model": "tiny",
        "quantization": "wint4",
        "rope": "default",
        "numerics": "cpu-1",
        "kv_cache_dtype": shape.dtype,
        "num_layers": shape.num_layers,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "block_size": shape.block_size,
    }
    return KVLayout(**(values | changes))


def fill(cache: KVCache, seed: int) -> None:
    """Different bytes everywhere."""
    arena = cache.memory().arena
    arena[:] = np.random.default_rng(seed).integers(0, 256, arena.size, np.uint8)


def block_bytes(cache: KVCache, block_id: int) -> list[bytes]:
    """What a block holds, plane after plane."""
    return [array[block_id].tobytes() for layer in cache.layers for array in layer]


def sink_options(folder: Path, *transports: str, **others: Any) -> SinkOptions:
    return SinkOptions(TransportOptions(folder), transports=transports or ("shm",), **others)


class Process:
    """A process that takes commands as JSON lines and answers in the same way."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", f"tests.transfer.{module}", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(),
        )
        assert self.hear() == "ready"

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.say(verb, **arguments)
        return self.hear()

    def say(self, verb: str, **arguments: Any) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps([verb, arguments]) + "\n")
        self.child.stdin.flush()

    def hear(self) -> Any:
        assert self.child.stdout is not None
        return json.loads(self.child.stdout.readline())

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class SourceProcess(Process):
    """A prefill process; see source_process.py."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__("source_process", str(folder), json.dumps(options))

    def offer(self, blocks: list[int], request_id: str = "r", **others: Any) -> Offer:
        text = self.ask("offer", request_id=request_id, blocks=blocks, **others)
        return decode_offer(base64.b64decode(text))


def until(condition: Any, limit_s: float = 10.0) -> Any:
    """Wait until something is true."""
    end_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)
    return value


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
