# SPDX-License-Identifier: Apache-2.0
"""PrefixSharing: what a request finds in the KV cache, and what it leaves there for others.

Blocks can be found once they have been computed, never before. Who is about to compute a block is
known here, so that those who need the same one can wait for it instead of computing it too.
"""

from __future__ import annotations

from fdspec.core import Request, Status
from fdspec.core.protocols import BlockPool, Match
from fdspec.kv.prefix_index import extend_digests


class PrefixSharing:
    """Matches and publishes the blocks of requests; called by `Residents` alone.

    Attributes:
        num_queried: prompt tokens of admitted requests that were looked up, since the start.
        num_hit: of those, tokens that were found.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.num_queried = 0
        self.num_hit = 0
        self._pool = pool
        self._block_size = pool.block_size
        self._computing: dict[bytes, Request] = {}
        self._held: dict[bytes, list[Request]] = {}

    def match(self, request: Request) -> Match:
        """What of a request's tokens is cached; never the newest, whose logits are needed.

        A request for logprobs of its prompt finds nothing, because they need every row. Names its
        blocks, changes nothing else.
        """
        if self._bypasses(request):
            return Match()
        tokens = request.tokens.view()
        extend_digests(request.digests, tokens, self._block_size)
        return self._pool.match(request.digests, tokens[:-1])

    def hold(self, request: Request, match: Match) -> bool:
        """Keep a request back if another one is computing the block that it needs next.

        It comes back from `publish` or `withdraw`, whatever becomes of the other.
        """
        index = len(match.block_ids) + 1
        if self._bypasses(request) or index >= len(request.digests):
            return False
        digest = request.digests[index]
        if digest not in self._computing:
            return False
        self._held.setdefault(digest, []).append(request)
        return True

    def begin(self, request: Request, match: Match, num_found: int) -> None:
        """A request was admitted with num_found tokens in the cache, and computes the rest."""
        request.num_published = len(match.block_ids)
        request.num_computed = num_found
        if request.num_cached is None:
            request.num_cached = min(num_found, request.num_prompt)
            self.num_queried += request.num_prompt
            self.num_hit += request.num_cached
        for digest in request.digests[request.num_published + 1 :]:
            self._computing.setdefault(digest, request)

    def publish(self, request: Request) -> list[Request]:
        """Let others find the full blocks that a request has computed; returns who waited for them.

        Where another block holds the same tokens already, the request holds that one from now on.
        """
        if not self._pool.prefix_caching:
            return []
        num_full = request.num_computed // self._block_size
        tokens = request.tokens.view(0, num_full * self._block_size)
        extend_digests(request.digests, tokens, self._block_size)
        block_ids = list(request.block_ids)
        woken: list[Request] = []
        for index in range(request.num_published, num_full):
            start, digest = index * self._block_size, request.digests[index + 1]
            block_ids[index] = self._pool.publish(
                block_ids[index],
                request.digests[index],
                tokens[start : start + self._block_size],
                digest,
            )
            woken += self._done(request, digest)
        request.block_ids = tuple(block_ids)
        request.num_published = num_full
        return woken

    def publish_tail(self, request: Request) -> None:
        """Let others find the computed part of the last block; the full ones are published."""
        start = request.num_published * self._block_size
        if request.num_computed > start and self._pool.prefix_caching:
            self._pool.publish(
                request.block_ids[request.num_published],
                request.digests[request.num_published],
                request.tokens.view(start, request.num_computed),
                None,
            )

    def withdraw(self, request: Request) -> list[Request]:
        """A request gives up what it has not computed; returns who waited for that."""
        woken: list[Request] = []
        for digest in request.digests[request.num_published + 1 :]:
            woken += self._done(request, digest)
        request.num_published = 0
        return woken

    def held(self) -> list[Request]:
        """Requests that are kept back. Does not modify."""
        return [
            request
            for requests in self._held.values()
            for request in requests
            if request.status is Status.WAITING
        ]

    def check(self) -> None:
        """Raise AssertionError if somebody waits for nobody. Does not modify."""
        assert self._held.keys() <= self._computing.keys()
        for digest, request in self._computing.items():
            assert digest in request.digests[request.num_published + 1 :]

    def _bypasses(self, request: Request) -> bool:
        return request.params.prompt_logprobs is not None or not self._pool.prefix_caching

    def _done(self, request: Request, digest: bytes) -> list[Request]:
        if self._computing.get(digest) is not request:
            return []
        del self._computing[digest]
        return self._held.pop(digest, [])
