# SPDX-License-Identifier: Apache-2.0
"""BrokerAddress: where a broker is and how we prove who we are. Read from `scheduler_url`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from fdspec.core import ConfigError

EMBEDDED = "embedded"
_SHAPES = {
    "redis": "redis://HOST:PORT/DB",
    "rediss": "rediss://HOST:PORT/DB",
    "unix": "unix:///PATH",
    "zmq+tcp": "zmq+tcp://HOST:PORT",
    "zmq+ipc": "zmq+ipc:///PATH",
    EMBEDDED: EMBEDDED,
}
SCHEMES = tuple(_SHAPES)
_USER = re.compile(r"^[^/@~]*@")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,64}")
# The kernel's limit for a socket's path, less what ZMQ adds.
_MAX_SOCKET_PATH_BYTES = 100


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker.

    Attributes:
        url: without a password, `~` resolved; safe to log. `embedded` starts a broker of one's own.
        password: for a Redis server; None if it asks for none.
        curve_keys: folder with the keys of a ZMQ member; None if the broker takes everybody.
    """

    url: str
    password: str | None = field(default=None, repr=False)
    curve_keys: Path | None = None

    @property
    def scheme(self) -> str:
        """One of SCHEMES."""
        return self.url.partition("://")[0]

    @property
    def is_zmq(self) -> bool:
        """True if a ZMQ broker is there, False for a server with Redis's protocol."""
        return self.scheme.startswith("zmq+")

    @property
    def path(self) -> Path | None:
        """Of a unix socket; None for addresses of the network."""
        if self.scheme in ("unix", "zmq+ipc"):
            return Path(_USER.sub("", self.url.partition("://")[2]).partition("?")[0])
        return None


def parse_address(
    url: str,
    *,
    password: str | None = None,
    curve_keys: str | None = None,
    key: str = "scheduler_url",
    schemes: Sequence[str] = SCHEMES,
) -> BrokerAddress:
    """The address in a text.

    Args:
        url: as in `scheduler_url`; `~` at the start of a socket's path is the home folder.
        password: of a Redis server.
        curve_keys: folder with the keys for a ZMQ broker.
        key: what the text was given as, for messages.
        schemes: those that are possible there, of SCHEMES.

    Raises:
        ConfigError: it is no address of a broker; says what one looks like.
    """
    keys = None if curve_keys is None else Path(curve_keys).expanduser()
    if url == EMBEDDED and EMBEDDED in schemes:
        return BrokerAddress(url)
    parts = urlsplit(url)
    if parts.scheme not in schemes or "://" not in url:
        *others, last = (_SHAPES[scheme] for scheme in schemes)
        raise ConfigError(
            f"{key} must be {', '.join(others)} or {last}, got {_shown(url)!r}{_hint(url, schemes)}"
        )
    if "@" in url and (parts.password is not None or ":" in parts.netloc.rpartition("@")[0]):
        raise ConfigError(
            f"{key} must not hold a password, because addresses are logged; give it as "
            "scheduler_password or in the variable FD_SCHEDULER_PASSWORD"
        )
    if parts.scheme in ("unix", "zmq+ipc"):
        return BrokerAddress(f"{parts.scheme}://{_socket_path(url, key)}", password, keys)
    _check_place(url, parts, key)
    return BrokerAddress(url, password, keys)


def check_topic(topic: str) -> str:
    """The topic's name, which becomes a part of keys.

    Raises:
        ConfigError: it has other characters than letters, digits and . _ -
    """
    if not _TOPIC.fullmatch(topic):
        raise ConfigError(
            f"scheduler_topic must be 1 to 64 letters, digits and . _ - characters, got {topic!r}"
        )
    return topic


def _check_place(url: str, parts: SplitResult, key: str) -> None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not parts.hostname or port == 0 or (port is None and parts.scheme == "zmq+tcp"):
        raise ConfigError(f"{key} needs a host and a port (1 to 65535), got {url!r}")
    if parts.scheme.startswith("redis") and not re.fullmatch(r"/?\d*", parts.path):
        raise ConfigError(f"{key} must end in the number of a database, got {url!r}")


def _socket_path(url: str, key: str) -> str:
    rest = url.partition("://")[2]
    user = _USER.match(rest)
    name = user[0] if user else ""
    path, separator, query = rest.removeprefix(name).partition("?")
    if path.startswith("~"):
        path = str(Path(path).expanduser())
    if not path.startswith("/"):
        raise ConfigError(f"{key} needs an absolute path, or one that starts with ~, got {url!r}")
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{key}: the socket's path has more than {_MAX_SOCKET_PATH_BYTES} bytes, "
            f"which the system does not allow: {path!r}"
        )
    return name + path + separator + query


def _hint(url: str, schemes: Sequence[str]) -> str:
    scheme = url.partition(":")[0]
    near = difflib.get_close_matches(scheme, schemes, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(url: str) -> str:
    """The text without what may be a password."""
    return re.sub(r"//[^/@]*@", "//...@", url)
