# SPDX-License-Identifier: Apache-2.0
"""HandoffConfig: how KV caches travel between servers. Read by the engine's process."""

from __future__ import annotations

from dataclasses import dataclass

from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.options import option


@dataclass(frozen=True, slots=True)
class HandoffConfig:
    """The handoff of KV caches between servers with `splitwise_role` prefill and decode."""

    kv_transfer_transports: tuple[str, ...] = option(
        ("shm", "zmq-tcp"),
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
        help="Seconds after which a decode server gives up to read a KV cache, and computes it.",
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
        if not self.kv_transfer_transports:
            raise Contradiction(
                ("kv_transfer_transports",), "kv_transfer_transports must name at least one"
            )
        if not self.kv_transfer_listen.startswith("tcp://"):
            raise Contradiction(
                ("kv_transfer_listen",),
                f"kv_transfer_listen must be tcp://ADDRESS:PORT, got {self.kv_transfer_listen!r}",
            )
