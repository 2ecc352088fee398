# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.engine.process --endpoint E`: an engine in a process of its own.

Reads an EngineConfig as JSON from standard input, joins the topic at E, and steps until SIGTERM.
Started by the frontend; ends with a status other than 0 after telling the topic why.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec

from fdspec.config import EngineConfig
from fdspec.core import FdspecError
from fdspec.engine.build import build_engine
from fdspec.engine.joining import Drain, join_topic
from fdspec.scheduler.topic import BrokerEngineTopic, EngineTopic, Fatal
from fdspec.utils.logging import configure_logging, get_logger

# Run as a program, this module is __main__, which is outside our loggers.
logger = get_logger("fdspec.engine.process")


class _Stop:
    """True once a signal has asked this process to end."""

    def __init__(self) -> None:
        self._is_set = False
        self.listen()

    def listen(self) -> None:
        """Handle the signals; again after Paddle's import, which takes them for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def __call__(self) -> bool:
        return self._is_set

    def _set(self, *_: object) -> None:
        self._is_set = True


def run_engine(config: EngineConfig, topic: EngineTopic, should_stop: _Stop) -> int:
    """Build an engine and run it; returns the exit status.

    Args:
        config: of the engine.
        topic: gets Ready first and, if something fails, Fatal last.
        should_stop: asked between steps.
    """
    try:
        built = build_engine(config, topic)
        if isinstance(topic, BrokerEngineTopic):
            topic.check_model(built.ready)
    except FdspecError as error:
        # The user's mistake: the message says what to do, a traceback would hide it.
        topic.publish(Fatal(str(error)))
        logger.error("%s", error)
        return 1
    except Exception as error:
        topic.publish(Fatal(f"the engine did not start: {type(error).__name__}: {error}"))
        logger.exception("the engine did not start")
        return 1
    should_stop.listen()
    # What exists now stays: the collector need not look at it again while steps run.
    gc.collect()
    gc.freeze()
    topic.publish(built.ready)
    may_end: Callable[[], bool] = should_stop
    if isinstance(topic, BrokerEngineTopic):
        limit_s = config.server.timeout_graceful_shutdown
        may_end = Drain(topic, built.engine.handoff, should_stop, limit_s)
    try:
        built.engine.run(may_end)
    except Exception:
        logger.exception("the engine failed")
        return 1
    finally:
        built.close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an engine as the frontend asks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True, help="address of the scheduler topic")
    options = parser.parse_args(arguments)
    configure_logging("engine")
    should_stop = _Stop()
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    topic = join_topic(config, options.endpoint)
    try:
        return run_engine(config, topic, should_stop)
    finally:
        topic.close()


if __name__ == "__main__":
    sys.exit(main())
