# SPDX-License-Identifier: Apache-2.0
"""What the scheduler topic adds: the time from submit to lease, and from emit to frontend.

    python -m benchmarks.bench_topic [--broker valkey|zmq] [--streams 16] [--seconds 5]

Broker, worker and frontend are processes of their own. The worker emits a token for each of its
streams in every step of --step-ms, in one call, as an engine does; finished streams are replaced.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.arguments import count
from fdspec.config.broker_address import parse_address
from fdspec.scheduler.broker.connecting import connect
from fdspec.scheduler.broker.embedded import is_answering
from fdspec.scheduler.broker.interface import Broker
from fdspec.scheduler.broker.values import Emission, Lease, Submission, Timing, WorkerCard

_TIMES = struct.Struct("<dd")
_LENGTH = 50
_PAYLOAD = b"x" * 1000


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=("valkey", "zmq"), default="valkey")
    parser.add_argument("--streams", type=count, default=16, help="requests at once")
    parser.add_argument("--seconds", type=count, default=5, help="duration")
    parser.add_argument("--step-ms", type=count, default=4, help="between two emissions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fd-", dir="/tmp") as folder:
        url = f"{'unix' if options.broker == 'valkey' else 'zmq+ipc'}://{folder}/b"
        command = [sys.executable, "-m", "fdspec.entrypoints.broker", "--listen", url]
        broker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        worker = multiprocessing.get_context("spawn").Process(
            # Room for more than there is, so that no request waits for a slot.
            target=work,
            args=(url, 2 * options.streams, options.step_ms / 1000),
            daemon=True,
        )
        try:
            while not is_answering(Path(folder) / "b"):
                time.sleep(0.05)
            worker.start()
            while not _connect(url).stats().workers:
                time.sleep(0.05)
            report(*measure(_connect(url), options.streams, options.seconds))
        finally:
            worker.kill()
            broker.terminate()
            broker.wait()
    return 0


class Stream(NamedTuple):
    """A request that the worker computes; one token in each step."""

    lease: Lease
    leased_after_s: float


def work(url: str, num_slots: int, step_s: float) -> None:
    """A worker: one thread leases what there is room for, one emits, as in `broker_worker.py`."""
    streams: list[Stream] = []
    room = threading.Semaphore(num_slots)
    threading.Thread(target=_lease_all, args=(_connect(url), streams, room), daemon=True).start()
    broker = _connect(url)
    indices: dict[str, int] = {}
    while True:
        time.sleep(step_s)
        emissions = []
        for stream in list(streams):
            ref = stream.lease.ref
            index = indices[ref.epoch] = indices.get(ref.epoch, -1) + 1
            payload = _TIMES.pack(time.monotonic(), stream.leased_after_s) + _PAYLOAD
            emissions.append(Emission(ref, 0, index, (7,), index + 1 == _LENGTH, payload))
            if index + 1 == _LENGTH:
                streams.remove(stream)
                room.release()
        if emissions:
            broker.emit(emissions)


def _lease_all(broker: Broker, streams: list[Stream], room: threading.Semaphore) -> None:
    card = WorkerCard("bench")
    while True:
        with room:
            pass
        for lease in broker.lease(card, 1, 1.0):
            submitted_s = _TIMES.unpack(lease.payload[: _TIMES.size])[0]
            room.acquire()
            streams.append(Stream(lease, time.monotonic() - submitted_s))


def measure(broker: Broker, num_streams: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds from submit to lease of each request, and from emit to frontend of each token."""
    leases: dict[str, float] = {}
    hops: list[float] = []
    cursor = ""
    num_sent = num_done = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        while num_sent - num_done < num_streams:
            payload = _TIMES.pack(time.monotonic(), 0.0) + _PAYLOAD
            broker.submit(Submission(f"r{num_sent}", "bench", payload))
            num_sent += 1
        collected = broker.collect("bench", cursor, 1.0)
        now_s = time.monotonic()
        cursor = collected.cursor
        for result in collected.results:
            assert result.payload is not None
            emitted_s, leases[result.request_id] = _TIMES.unpack(result.payload[: _TIMES.size])
            hops.append(now_s - emitted_s)
        num_done = len(hops) // _LENGTH
    return list(leases.values()), hops


def report(leases: list[float], hops: list[float]) -> None:
    """Print medians and 99th percentiles."""
    for name, values in (("submit to lease", leases), ("emit to frontend", hops)):
        ordered = sorted(value * 1000 for value in values)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        median = statistics.median(ordered)
        print(f"{name:>17}: p50 {median:.2f} ms, p99 {p99:.2f} ms ({len(ordered)} of them)")


def _connect(url: str) -> Broker:
    return connect(parse_address(url), "bench", Timing())


if __name__ == "__main__":
    sys.exit(main())
