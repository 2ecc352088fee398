# SPDX-License-Identifier: Apache-2.0
"""A topic on a server with Redis's protocol (Redis >= 6.2, Valkey): one Lua script for each verb.

The scripts hold the rules; here is only how arguments and answers are written, and how one waits.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fdspec.config.broker_address import BrokerAddress
from fdspec.scheduler.broker.interface import (
    MAX_WAIT_S,
    BrokerRefused,
    BrokerUnavailable,
    check_payload,
)
from fdspec.scheduler.broker.values import (
    Collected,
    Emission,
    EmitOutcome,
    FailureCode,
    Lease,
    LeaseRef,
    LeaseState,
    Progress,
    Result,
    Submission,
    SubmitOutcome,
    Timing,
    TopicStats,
    WorkerCard,
    WorkerState,
)

_VERBS = ("submit", "lease", "renew", "emit", "nack", "leave", "cancel", "stats", "collect")
_ENDED = b"ended"
_ANSWER_S = 5.0
_MAX_RESULTS = 1000
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE_CARD = msgspec.msgpack.Decoder(WorkerCard).decode
_REFUSALS = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)
# How older servers say the same.
_NO_ENTRY = ("WRONGPASS", "NOAUTH", "NOPERM", "invalid password", "Client sent AUTH")


class RedisBroker:
    """One member's connection; implements `Broker`.

    Args:
        address: of the server.
        topic: name of the topic, already checked.
        timing: how long this member may be silent.
        connect_s: how long a call tries to reach the broker.
    """

    def __init__(
        self, address: BrokerAddress, topic: str, timing: Timing, *, connect_s: float
    ) -> None:
        self._url = address.url
        self._prefix = f"fd:{{{topic}}}:"
        self._timing = timing
        self._client = redis.Redis.from_url(
            address.url,
            password=address.password,
            # Answers have another shape in version 3.
            protocol=2,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=connect_s,
            retry=Retry(NoBackoff(), 0),
        )
        common = _script("common")
        self._scripts = {
            verb: self._client.register_script(f"{common}\n{_script(verb)}") for verb in _VERBS
        }

    def submit(self, submission: Submission) -> SubmitOutcome:
        """See `Broker.submit`."""
        check_payload(submission.payload)
        emitted = submission.emitted or ((),) * submission.num_choices
        outcome: bytes = self._call(
            "submit",
            submission.request_id,
            submission.frontend,
            submission.payload,
            submission.num_choices,
            submission.attempt,
            submission.decode_below,
            submission.priority,
            _ms(submission.ttl_s),
            submission.max_waiting,
            int(submission.needs_worker),
            *(_ENDED if tokens is None else _pack(tokens) for tokens in emitted),
        )
        return SubmitOutcome(outcome.decode())

    def lease(self, worker: WorkerCard, num_slots: int, wait_s: float = 0.0) -> list[Lease]:
        """See `Broker.lease`."""
        leases = self._lease(worker, num_slots)
        if not leases and wait_s > 0 and num_slots > 0:
            with self._translated():
                # A mixed worker, which may stand in for decode workers, must not take their bell.
                queue = "decode" if worker.role == "decode" else "prefill"
                rung: Any = self._client.blpop(
                    [f"{self._prefix}bell:{queue}"], timeout=min(wait_s, MAX_WAIT_S)
                )
            if rung is not None:
                leases = self._lease(worker, num_slots)
        return leases

    def renew(self, worker: WorkerCard, leases: Sequence[LeaseRef]) -> list[LeaseState]:
        """See `Broker.renew`."""
        states: list[bytes] = self._call("renew", *self._sign_of_life(worker), *_names(leases))
        return [LeaseState(state.decode()) for state in states]

    def emit(self, emissions: Sequence[Emission]) -> list[EmitOutcome]:
        """See `Broker.emit`."""
        arguments: list[Any] = []
        for emission in emissions:
            check_payload(emission.payload)
            check_payload(emission.offer)
            arguments += (
                emission.ref.request_id,
                emission.ref.epoch,
                emission.choice,
                emission.index,
                _pack(emission.tokens),
                int(emission.is_last),
                emission.payload,
                emission.offer,
            )
        outcomes: list[bytes] = self._call("emit", *arguments)
        return [EmitOutcome(outcome.decode()) for outcome in outcomes]

    def nack(self, leases: Sequence[LeaseRef], *, is_fault: bool = False) -> None:
        """See `Broker.nack`."""
        self._call("nack", int(is_fault), *_names(leases))

    def leave(self, worker: WorkerCard) -> None:
        """See `Broker.leave`."""
        self._call("leave", worker.worker_id, worker.role)

    def cancel(self, request_id: str) -> None:
        """See `Broker.cancel`."""
        self._call("cancel", request_id)

    def stats(self) -> TopicStats:
        """See `Broker.stats`."""
        waiting, num_leased, num_frontends, num_dead, workers = self._call("stats")
        states = [WorkerState(_DECODE_CARD(card), count) for card, count in workers]
        states.sort(key=lambda state: state.card.worker_id)
        return TopicStats(tuple(waiting), num_leased, num_frontends, num_dead, tuple(states))

    def collect(self, frontend: str, cursor: str, wait_s: float = 0.0) -> Collected:
        """See `Broker.collect`."""
        is_new = bool(self._call("collect", frontend, cursor, _ms(self._timing.lease_s)))
        if is_new:
            cursor = ""
        stream = f"{self._prefix}r:{frontend}"
        # With BLOCK 0 the server would wait for ever.
        block_ms = None if is_new or wait_s <= 0 else max(_ms(min(wait_s, MAX_WAIT_S)), 1)
        with self._translated():
            answer: Any = self._client.xread(
                {stream: cursor or "0"}, count=_MAX_RESULTS, block=block_ms
            )
        entries = answer[0][1] if answer else []
        results = tuple(_result(fields) for _, fields in entries)
        return Collected(results, entries[-1][0].decode() if entries else cursor, is_new)

    def close(self) -> None:
        """Free the connection. Idempotent."""
        self._client.close()

    def _lease(self, worker: WorkerCard, num_slots: int) -> list[Lease]:
        answer = self._call("lease", *self._sign_of_life(worker), num_slots, secrets.token_hex(16))
        return [
            Lease(
                LeaseRef(request_id.decode(), epoch.decode()),
                payload,
                tuple(map(_unpack, choices[::2])),
                delivery,
                tuple(choices[1::2]),
            )
            for request_id, epoch, payload, delivery, *choices in answer
        ]

    def _sign_of_life(self, worker: WorkerCard) -> tuple[Any, ...]:
        timing = self._timing
        times = _ms(timing.lease_s), _ms(timing.worker_timeout_s)
        return worker.worker_id, worker.role, _ENCODE(worker), *times

    def _call(self, verb: str, *arguments: Any) -> Any:
        with self._translated():
            return self._scripts[verb](keys=[self._prefix], args=arguments)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """The client library's errors as those of the contract."""
        try:
            yield
        except redis.exceptions.RedisError as error:
            text = f"{self._url}: {error}"
            if isinstance(error, _REFUSALS) or any(word in str(error) for word in _NO_ENTRY):
                raise BrokerRefused(
                    f"{text}; check scheduler_password and the user's rights"
                ) from None
            raise BrokerUnavailable(text) from None
        except OSError as error:
            raise BrokerUnavailable(f"{self._url}: {error}") from None


def _script(name: str) -> str:
    folder = resources.files("fdspec.scheduler.broker") / "lua"
    return (folder / f"{name}.lua").read_text(encoding="utf-8")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _pack(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def _unpack(data: bytes | None) -> Progress:
    return None if data is None else struct.unpack(f"<{len(data) // 4}I", data)


def _names(leases: Sequence[LeaseRef]) -> list[str]:
    return [text for ref in leases for text in (ref.request_id, ref.epoch)]


def _result(fields: dict[bytes, bytes]) -> Result:
    request_id, attempt = fields[b"r"].decode(), int(fields[b"a"])
    if b"f" in fields:
        return Result(request_id, attempt, failure=FailureCode(fields[b"f"].decode()))
    return Result(request_id, attempt, fields[b"p"])
