# SPDX-License-Identifier: Apache-2.0
"""HandoffConfig: how KV caches travel between servers. Read by the engine's process."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.options import option
from fdspec.config.plugins import KV_TRANSPORTS, plugin_names

# Those of fdspec/transfer/transports.
OWN_TRANSPORTS: tuple[str, ...] = ("shm", "zmq-tcp")
_ADDRESS = re.compile(r"tcp://(?P<host>[^/]+):(?P<port>\*|\d{1,5})")
_LOOPBACK = re.compile(r"127\..*|localhost|\[::1\]")
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class HandoffConfig:
    """The handoff of KV caches between servers with `splitwise_role` prefill and decode."""

    kv_transfer_transports: tuple[str, ...] = option(
        OWN_TRANSPORTS,
        separator=",",
        help="Ways to copy KV caches: shm on one machine, zmq-tcp, and plug-ins (docs/"
        "kv_handoff.md). A prefill server offers all of them, a decode server takes the first of "
        "its own that is offered.",
    )
    kv_transfer_listen: str = option(
        "tcp://127.0.0.1:*",
        help="ZMQ address on which a prefill server is asked for KV caches; * takes a free port. "
        "Beyond this machine it needs kv_transfer_curve_keys.",
    )
    kv_transfer_curve_keys: str | None = option(
        None,
        help="Folder with a member's keys (`python -m fdspec.entrypoints.broker make-keys` makes "
        "them); all prefill and decode servers that share it let each other in, encrypted.",
    )
    kv_transfer_lease: float = option(
        60.0,
        minimum=1.0,
        maximum=3600.0,
        help="Seconds for which a prefill server keeps a KV cache that no decode server has asked "
        "for; from then on, the decode server renews it.",
    )
    kv_transfer_timeout: float = option(
        30.0,
        minimum=1.0,
        maximum=3600.0,
        help="Seconds that a decode server tries to take a KV cache over before it computes it; "
        "with kv_transfer_overlap they include the rest of the prompt. A single read has a third "
        "of them, so that there is time for another transport.",
    )
    kv_transfer_overlap: bool = option(
        False,
        help="Of a prefill server: hand a request over when its prompt begins to be computed, so "
        "that decode reads layer by layer while prefill goes on, and tells the first token. The "
        "first token then waits for room at a decode server; the others come sooner.",
    )
    kv_transfer_checksums: bool = option(
        True, help="Compare a checksum of every block that was read."
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        self._check_transports()
        self._check_address()

    def _check_transports(self) -> None:
        keys = ("kv_transfer_transports",)
        if not self.kv_transfer_transports:
            raise Contradiction(
                keys, f"{keys[0]} must name at least one, such as {', '.join(OWN_TRANSPORTS)}"
            )
        names = OWN_TRANSPORTS
        if not set(self.kv_transfer_transports) <= set(names):
            names += plugin_names(KV_TRANSPORTS)
        for name in self.kv_transfer_transports:
            if name not in names:
                near = difflib.get_close_matches(name.lower(), names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise Contradiction(
                    keys,
                    f"{keys[0]}: there is no transport {name!r}, only {', '.join(names)}{hint}",
                )
        if len(set(self.kv_transfer_transports)) < len(self.kv_transfer_transports):
            listed = ", ".join(self.kv_transfer_transports)
            raise Contradiction(keys, f"{keys[0]} must name each one once, got {listed}")

    def _check_address(self) -> None:
        listen = self.kv_transfer_listen
        address = _ADDRESS.fullmatch(listen)
        if address is None or address["port"] != "*" and not 0 < int(address["port"]) <= _LAST_PORT:
            raise Contradiction(
                ("kv_transfer_listen",),
                "kv_transfer_listen must be tcp://ADDRESS:PORT with a port from 1 to "
                f"{_LAST_PORT}, or * for a free one; got {listen!r}",
            )
        if self.kv_transfer_curve_keys is None and not _LOOPBACK.fullmatch(address["host"]):
            raise Contradiction(
                ("kv_transfer_listen", "kv_transfer_curve_keys"),
                f"kv_transfer_listen: {listen} can be reached from other machines, so it needs "
                "kv_transfer_curve_keys, a folder of keys that all prefill and decode servers "
                "share; or listen on 127.0.0.1",
            )
