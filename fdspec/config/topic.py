# SPDX-License-Identifier: Apache-2.0
"""TopicConfig: how requests reach an engine, privately or over a topic that several servers share.

The keys `scheduler_*` that FastDeploy has too, and what its role is. Read by the entry points and
by the engine's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fdspec.config.broker_address import BrokerAddress, check_topic, parse_address
from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.options import option
from fdspec.core.errors import ConfigError

_DEFAULT_TOPIC = "default"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The scheduler topic that a server belongs to."""

    scheduler_name: Literal["local", "global", "splitwise"] = option(
        "local",
        help="local: server and engine talk over a private socket. global: requests of every "
        "server of the topic wait at a broker, and any worker takes them. splitwise: the same, "
        "under FastDeploy's name for roles.",
    )
    splitwise_role: Literal["mixed", "prefill", "decode", "frontend"] = option(
        "mixed",
        help="mixed computes prompts and answers; prefill computes prompts and their first tokens, "
        "and decode goes on from there with the KV cache that prefill hands over. All of them "
        "serve the API, too; frontend does nothing else: it needs the model's tokenizer, and "
        "workers on the topic.",
    )
    splitwise_decode_prefill_tokens: int = option(
        0,
        minimum=0,
        help="Prompts of at most so many tokens, sent to this server, are computed by decode "
        "servers, because a handoff would take longer; 0 sends all of them to prefill servers.",
    )
    scheduler_topic: str = option(
        _DEFAULT_TOPIC,
        help="Name of the topic; servers of different topics share nothing. Letters, digits and "
        "the characters . _ -",
    )
    scheduler_url: str | None = option(
        None,
        help="Address of the broker: redis://HOST:PORT/DB, rediss:// (TLS), unix:///PATH, "
        "zmq+tcp://HOST:PORT, zmq+ipc:///PATH, or embedded, which starts one for this server. "
        "Default: redis:// with scheduler_host, scheduler_port and scheduler_db.",
    )
    scheduler_host: str = option("127.0.0.1", help="Host of the Redis or Valkey server.")
    scheduler_port: int = option(
        6379, minimum=1, maximum=65535, help="Port of the Redis or Valkey server."
    )
    scheduler_db: int = option(0, minimum=0, help="Number of its database.")
    scheduler_password: str | None = option(
        None, secret=True, help="Its password; also from FD_SCHEDULER_PASSWORD."
    )
    scheduler_curve_keys: str | None = option(
        None,
        help="Folder with a member's keys for a ZMQ broker; `python -m "
        "fdspec.entrypoints.broker make-keys` makes them.",
    )
    scheduler_ttl: float = option(
        900.0,
        minimum=1.0,
        help="Seconds from its submission after which a request is given up (broker's clock).",
    )
    scheduler_max_size: int = option(
        1024,
        minimum=-1,
        help="Most requests that wait on the topic; further ones are answered with 429. -1 is no "
        "limit.",
    )
    scheduler_without_worker: Literal["wait", "reject"] = option(
        "wait",
        help="While no worker is alive, or with roles not one of each: wait keeps requests up to "
        "scheduler_ttl, reject answers 503.",
    )
    scheduler_lease: float = option(
        15.0,
        minimum=1.0,
        maximum=3600.0,
        help="Seconds of silence after which a frontend's requests are cancelled and a worker's "
        "requests go to others; a worker that says nothing at all is given a third of it.",
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self.is_shared:
            self._check_local()
        try:
            check_topic(self.scheduler_topic)
        except ConfigError as error:
            raise Contradiction(("scheduler_topic",), str(error)) from None
        try:
            address = self.address
        except ConfigError as error:
            raise Contradiction(
                ("scheduler_url", "scheduler_host", "scheduler_port", "scheduler_db"), str(error)
            ) from None
        if self.scheduler_curve_keys is not None and not address.is_zmq:
            raise Contradiction(
                ("scheduler_curve_keys", "scheduler_url"),
                "scheduler_curve_keys are for a ZMQ broker (scheduler_url: zmq+tcp://HOST:PORT)",
            )

    @property
    def is_shared(self) -> bool:
        """True if requests go over a broker."""
        return self.scheduler_name != "local"

    @property
    def hands_over(self) -> bool:
        """True if KV caches are handed over, from or to this server."""
        return self.splitwise_role in ("prefill", "decode")

    @property
    def address(self) -> BrokerAddress:
        """Where the broker is."""
        place = f"{self.scheduler_host}:{self.scheduler_port}/{self.scheduler_db}"
        return parse_address(
            self.scheduler_url or f"redis://{place}",
            password=self.scheduler_password,
            curve_keys=self.scheduler_curve_keys,
        )

    def _check_local(self) -> None:
        if self.splitwise_role != "mixed":
            raise Contradiction(
                ("splitwise_role", "scheduler_name"),
                f"splitwise_role: {self.splitwise_role} needs scheduler_name: splitwise (or "
                "global), because it does only a part of what a request needs; other servers of "
                "the same scheduler_topic do the rest",
            )
        if self.scheduler_url is not None:
            raise Contradiction(
                ("scheduler_url", "scheduler_name"),
                "scheduler_url needs scheduler_name: global; scheduler_name: local has no broker",
            )
