# SPDX-License-Identifier: Apache-2.0
"""A prefill process without a model: caches bytes that depend on a seed, offers what it is told."""

from __future__ import annotations

import base64
import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fdspec.transfer import (
    Completion,
    HandoffServer,
    ServerKeys,
    ServerOptions,
    SourceCounts,
    TransportOptions,
)
from fdspec.transfer.offer import encode_offer
from tests.transfer.worlds import cache_of, fill, layout_of


class Source:
    """What the commands do."""

    def __init__(
        self,
        folder: str,
        *,
        dtype: str = "bfloat16",
        num_blocks: int = 16,
        keys: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.cache = cache_of(dtype, num_blocks)
        fill(self.cache, 1)
        server_keys = None
        if keys is not None:
            allowed = frozenset(key.encode() for key in keys["allowed"])
            server_keys = ServerKeys(keys["public"].encode(), keys["secret"].encode(), allowed)
        transport = TransportOptions(Path(folder), server_keys=server_keys)
        self.freed: list[tuple[int, ...]] = []
        self.counter = 0
        if "transports" in options:
            options["transports"] = tuple(options["transports"])
        self.server = HandoffServer(
            self.cache.memory(),
            layout_of(self.cache),
            ServerOptions(transport, **options),
            self.freed.append,
        )

    def offer(
        self,
        request_id: str,
        blocks: list[int],
        is_complete: bool = True,
        epoch: int = 0,
    ) -> str:
        """Offer blocks, complete or still being computed."""
        key = (request_id, 0, epoch)
        offer = self.server.open(key, blocks, len(blocks) * self.cache.layout.block_size)
        if is_complete:
            done = self.server.complete(key, Completion(7, b"logprobs", b"state"))
            assert done is not None
            offer = done
        return base64.b64encode(encode_offer(offer)).decode()

    def computing(self, request_id: str, num_blocks: int) -> None:
        """Begin a step."""
        self.server.computing({(request_id, 0, 0): num_blocks}, lambda: self.counter)

    def count(self, value: int) -> None:
        """Let the step's counter show something."""
        self.counter = value

    def advance(self, request_id: str, num_blocks: int) -> None:
        """End a step."""
        self.server.advance({(request_id, 0, 0): num_blocks})

    def complete(self, request_id: str) -> bool:
        """All is computed."""
        return self.server.complete((request_id, 0, 0), Completion(7)) is not None

    def withdraw(self, request_id: str, epoch: int = 0) -> None:
        """The request has ended here."""
        self.server.withdraw((request_id, 0, epoch))

    def refill(self, seed: int) -> None:
        """Other bytes everywhere, as if all blocks had been given to others."""
        fill(self.cache, seed)

    def state(self) -> dict[str, Any]:
        """Counts, and what has been freed."""
        self.server.check()
        return {**asdict(self.server.counts), "freed": self.freed, "open": self.server.num_open}

    def reset(self) -> None:
        """As after the start."""
        for held in list(self.server._source._held):
            self.server.withdraw(held)
        self.server._source.counts = SourceCounts()
        self.freed.clear()
        self.counter = 0
        fill(self.cache, 1)

    def threads(self) -> int:
        """Threads that are alive."""
        return threading.active_count()

    def close(self) -> None:
        """Stop serving."""
        self.server.close()


def main() -> None:
    """Answer commands until there are no more."""
    source = Source(sys.argv[1], **json.loads(sys.argv[2]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        print(json.dumps(getattr(source, verb)(**arguments)), flush=True)
    source.close()


if __name__ == "__main__":
    main()
