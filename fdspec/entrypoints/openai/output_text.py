# SPDX-License-Identifier: Apache-2.0
"""Text of one choice on its way to the client: no part of a stop string is ever let out.

Owns the text that is held back because a stop string may begin there. The engine decides whether a
stop string ends the output; this only cuts when told to. Streaming and whole answers both use it.
"""

from __future__ import annotations

from collections.abc import Sequence


class OutputText:
    """Takes text as it is decoded, lets out what can no longer belong to a stop string.

    The pieces that `push`, `flush` and `stop` return add up to the choice's text, whatever the
    division into pushes.

    Args:
        stops: the request's stop strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Add text; returns what may be shown."""
        if not self._stops:
            return text
        pending = self._held + text
        num_held = max(_overlap(pending, stop) for stop in self._stops)
        self._held = pending[len(pending) - num_held :]
        return pending[: len(pending) - num_held]

    def flush(self) -> str:
        """What was held back; for an end without a stop string."""
        held, self._held = self._held, ""
        return held

    def stop(self, last: str, stop: str, *, include: bool) -> str:
        """What may be shown when `stop` ended the output.

        Args:
            last: text of the last token; the stop string ends inside it. An earlier occurrence,
                before min_tokens, did not count and stays.
            stop: the stop string.
            include: keep it.
        """
        num_before = len(self._held)
        pending = self._held + last
        self._held = ""
        start = pending.find(stop, max(0, num_before - len(stop) + 1))
        if start < 0:
            return pending
        return pending[: start + len(stop) if include else start]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without being all of it."""
    start = max(0, len(text) - len(stop) + 1)
    while True:
        start = text.find(stop[0], start)
        if start < 0:
            return 0
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
