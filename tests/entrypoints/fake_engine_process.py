# SPDX-License-Identifier: Apache-2.0
"""The fake engine as a child process, and the server around it: `python <this file> MODE ...`.

`serve MODEL_FOLDER ENGINE_MODE [key=value ...]` runs a server, which starts
`engine MODE --endpoint E`. Mode `echo` repeats the prompt for ever; `refuse` and `hang` never get
ready. `launch FILE ENGINE_MODE [FLAG ...]` runs a launch of such servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from fdspec.config import EngineConfig, config_from_options
from fdspec.config.command_line import read_command_line
from fdspec.config.launch import load_launch
from fdspec.core import Submit
from fdspec.engine.joining import Drain, join_topic
from fdspec.engine.no_handoff import NoHandoff
from fdspec.entrypoints.launch import server as launched
from fdspec.entrypoints.launch.supervisor import launch
from fdspec.entrypoints.server import serve
from fdspec.scheduler.topic import BrokerEngineTopic, Fatal, Ready
from fdspec.utils.logging import configure_logging
from tests.entrypoints.fake_engine import FakeEngine
from tests.entrypoints.tiny_tokenizer import make_tokenizer

READY = Ready(300, 4096, 64, 64, 8)
CRASH_PROMPT = b"crash"


def run_server(folder: str, mode: str, settings: list[str]) -> int:
    configure_logging("server")
    options: dict[str, object] = {"model": folder, "host": "127.0.0.1", "port": 0}
    options |= {key: msgspec.json.decode(value) for key, value in map(_split, settings)}
    command = (sys.executable, __file__, "engine", mode)
    return asyncio.run(serve(config_from_options(options).config, command))


def run_launch(path: str, mode: str, flags: list[str]) -> int:
    configure_logging("launch")
    command = (sys.executable, __file__, "launched", mode)
    return asyncio.run(launch(load_launch([path], read_command_line(flags).settings), command))


def run_engine(mode: str, endpoint: str) -> int:
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    print(f"fake engine for {config.model.served_names}, {len(config.server.api_key)} keys")
    print(f"processors {sorted(os.sched_getaffinity(0))}", flush=True)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    topic = join_topic(config, endpoint)
    if mode == "refuse":
        topic.publish(Fatal("tensor x has the wrong shape"))
        topic.close()
        return 1
    engine = FakeEngine(topic, make_tokenizer(), READY)
    engine.script.reply = _reply
    engine.script.step_s = 0.01
    if mode != "hang":
        topic.publish(READY)
    may_end: Callable[[], bool] = lambda: bool(stopped)  # noqa: E731
    if isinstance(topic, BrokerEngineTopic):
        may_end = Drain(topic, NoHandoff(), may_end, config.server.timeout_graceful_shutdown)
    while not may_end():
        engine.step(0.05)
    print("fake engine stopped", flush=True)
    topic.close()
    return 0


def _reply(submit: Submit, choice: int) -> list[int]:
    if bytes(submit.prompt) == CRASH_PROMPT:
        print("boom: the last line", file=sys.stderr, flush=True)
        time.sleep(0.2)
        os._exit(3)
    return [*submit.prompt] * (4096 // len(submit.prompt))


def _split(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key, value


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        sys.exit(run_launch(sys.argv[2], sys.argv[3], sys.argv[4:]))
    if sys.argv[1] == "launched":
        sys.exit(launched.main(sys.argv[3:], (sys.executable, __file__, "engine", sys.argv[2])))
    if sys.argv[1] == "serve":
        sys.exit(run_server(sys.argv[2], sys.argv[3], sys.argv[4:]))
    sys.exit(run_engine(sys.argv[2], sys.argv[4]))
