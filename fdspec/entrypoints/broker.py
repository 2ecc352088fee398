# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.broker`: the broker of a scheduler topic, in the foreground.

`--listen unix:///PATH` runs the embedded Redis-compatible server, `--listen zmq+tcp://HOST:PORT` or
`zmq+ipc:///PATH` the ZMQ broker; `make-keys FOLDER` makes the keys of the latter. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from fdspec.config.broker_address import BrokerAddress, parse_address
from fdspec.core import ConfigError, FdspecError
from fdspec.entrypoints.own_broker import NO_SERVER
from fdspec.scheduler.broker.curve_keys import make_keys
from fdspec.scheduler.broker.embedded import EmbeddedServer, find_server
from fdspec.scheduler.broker.zmq_server import ZmqServer
from fdspec.utils.logging import configure_logging, get_logger

PROGRAM = "python -m fdspec.entrypoints.broker"
_SCHEMES = ("unix", "zmq+tcp", "zmq+ipc")
DEFAULT_ADDRESS = "unix://~/.fdspec/broker.sock"
logger = get_logger("fdspec.entrypoints.broker")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker until a signal; returns the exit status.

    0 after a signal, 1 if the server ended by itself, 2 for a wrong address or key.

    Args:
        argv: command line without the program's name; None takes the process's own.
    """
    options = _parser().parse_args(argv)
    configure_logging("broker")
    try:
        if options.action == "make-keys":
            make_keys(Path(options.folder).expanduser())
            print(
                f"{options.folder}/broker stays where the broker runs (--curve-keys); copy "
                f"{options.folder}/member to every server (scheduler_curve_keys)"
            )
            return 0
        return _serve(_address(options.listen, options.curve_keys))
    except ConfigError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except FdspecError as error:
        logger.error("%s", error)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument(
        "--listen",
        default=DEFAULT_ADDRESS,
        metavar="URL",
        help=f"address, the scheduler_url of the servers (default: {DEFAULT_ADDRESS})",
    )
    parser.add_argument(
        "--curve-keys",
        metavar="FOLDER",
        help="keys of a ZMQ broker, the folder `broker` that make-keys has made",
    )
    actions = parser.add_subparsers(dest="action")
    keys = actions.add_parser("make-keys", help="make keys for a ZMQ broker and its members")
    keys.add_argument("folder", help="where to; must not have keys yet")
    return parser


def _address(listen: str, curve_keys: str | None) -> BrokerAddress:
    """Where to listen (ConfigError: not there)."""
    if listen.startswith(("redis://", "rediss://")):
        raise ConfigError(
            "--listen: for the network, run a Redis or Valkey server (6.2 or newer) and name it in "
            "scheduler_url; this program listens on unix:// and zmq+ sockets"
        )
    return parse_address(listen, curve_keys=curve_keys, key="--listen", schemes=_SCHEMES)


def _serve(address: BrokerAddress) -> int:
    path = address.path
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path is None or address.is_zmq:
        return _serve_zmq(address)
    if find_server() is None:
        zmq_address = parse_address(f"zmq+ipc://{path}")
        logger.warning("%s: set scheduler_url to %s", NO_SERVER, zmq_address.url)
        return _serve_zmq(zmq_address)
    return _serve_embedded(path)


def _serve_zmq(address: BrokerAddress) -> int:
    server = ZmqServer(address)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        logger.info("ZMQ broker listening on %s", address.url)
        server.run()
    finally:
        server.close()
        if address.path is not None:
            address.path.unlink(missing_ok=True)
    logger.info("stopped")
    return 0


def _serve_embedded(path: Path) -> int:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    server = EmbeddedServer(path)
    try:
        logger.info("embedded server listening on %s", server.url)
        while not stopping.wait(0.2):
            if not server.is_running():
                logger.error("the embedded server has ended")
                return 1
    finally:
        server.stop()
    logger.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
