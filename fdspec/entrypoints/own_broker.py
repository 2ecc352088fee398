# SPDX-License-Identifier: Apache-2.0
"""A broker of one's own: an embedded Redis-compatible server, or else the ZMQ broker.

Used by `server.py` for `scheduler_url: embedded`, and by `broker.py`, which is nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fdspec.config import EngineConfig
from fdspec.config.broker_address import EMBEDDED
from fdspec.core import FdspecError
from fdspec.scheduler.broker.embedded import EmbeddedServer, find_server, is_answering
from fdspec.utils.child_process import die_with_parent
from fdspec.utils.logging import get_logger
from fdspec.utils.private_folder import make_private_folder

logger = get_logger(__name__)

_START_S = 30.0
_LOOK_S = 0.2
_PAUSE_S = 1.0
NO_SERVER = (
    "there is no embedded server for this machine (pip install 'fdspec[embedded]'); "
    "taking the ZMQ broker, which does the same"
)


@contextlib.contextmanager
def with_broker(config: EngineConfig) -> Iterator[EngineConfig]:
    """The configuration with the address of a running broker; starts one if it says `embedded`.

    A broker that ends is started again; members notice that it is empty, and go on.

    Raises:
        FdspecError: the broker does not start.
    """
    if not config.topic.is_shared or config.topic.scheduler_url != EMBEDDED:
        yield config
        return
    folder = make_private_folder()
    start: Callable[[Path], EmbeddedServer | _ZmqProcess] = EmbeddedServer
    if find_server() is None:
        logger.warning("%s", NO_SERVER)
        start = _ZmqProcess
    keeper = _Keeper(lambda: start(folder / "broker"))
    try:
        url = keeper.wait_until_started()
        logger.info("broker started; other servers join with scheduler_url: %s", url)
        topic = dataclasses.replace(config.topic, scheduler_url=url)
        yield dataclasses.replace(config, topic=topic)
    finally:
        keeper.stop()
        shutil.rmtree(folder, ignore_errors=True)


class _ZmqProcess:
    """The ZMQ broker as a child process."""

    def __init__(self, path: Path) -> None:
        self.url = f"zmq+ipc://{path}"
        command = [sys.executable, "-m", "fdspec.entrypoints.broker", "--listen", self.url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent()
        )
        deadline_s = time.monotonic() + _START_S
        while not is_answering(path):
            if not self.is_running() or time.monotonic() > deadline_s:
                self.stop()
                raise FdspecError(f"the broker did not start on {path}")
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class _Keeper:
    """Keeps a broker running, in the one thread to whose life the kernel ties the broker's."""

    def __init__(self, start: Callable[[], EmbeddedServer | _ZmqProcess]) -> None:
        self._start = start
        self._url: queue.SimpleQueue[str | FdspecError] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()

    def wait_until_started(self) -> str:
        outcome = self._url.get()
        if isinstance(outcome, FdspecError):
            raise outcome
        return outcome

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                broker = self._start()
            except FdspecError as error:
                self._url.put(error)
                logger.error("%s", error)
                self._stopping.wait(_PAUSE_S)
                continue
            self._url.put(broker.url)
            while broker.is_running() and not self._stopping.wait(_LOOK_S):
                pass
            if not self._stopping.is_set():
                logger.error("the broker has ended; starting it again")
            broker.stop()
