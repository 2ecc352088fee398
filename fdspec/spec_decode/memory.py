# SPDX-License-Identifier: Apache-2.0
"""MemoryProposer: drafts a tree of what followed the latest tokens in any prompt or output so far.

All requests of a cache salt share one trie, into which their tokens go whole, prompt and output, as
they are committed; drafts that were refused never do. Old requests are forgotten when it grows
beyond its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.spec_decode.text_cache import CachedText, TextCache

SOURCE = "memory"
BRANCH_LENGTH = 32
"""Most tokens of a match and a branch after it."""

_MIN_PROBABILITY = 0.2


class MemoryProposer:
    """Memory decoding. Implements `core.protocols.Proposer`."""

    def __init__(self, num_speculative_tokens: int, *, max_bytes: int = 2**28) -> None:
        """Set the limits.

        Args:
            num_speculative_tokens: most tokens of a tree, at least 1.
            max_bytes: most bytes of the texts that are remembered.
        """
        assert num_speculative_tokens >= 1, num_speculative_tokens
        self._num_speculative_tokens = num_speculative_tokens
        self._texts: dict[SequenceId, CachedText] = {}
        self.cache = TextCache(max_depth=BRANCH_LENGTH, max_texts=None, max_bytes=max_bytes)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A tree for each context with a match."""
        drafts = []
        for context in contexts:
            key = context.sequence_id
            text = self._follow(key, context.tokens, context.num_prompt, context.cache_salt)
            found = self.cache.tree(text).draft_tree(
                text.number,
                min(context.max_draft, self._num_speculative_tokens),
                min_probability=_MIN_PROBABILITY,
            )
            if len(found.tokens) > 0:
                drafts.append(Draft(key, found.tokens, found.parents, SOURCE))
        return drafts

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Take in prompts chunk by chunk, and all of a sequence that ends.

        What comes between is taken in when it is drafted from.
        """
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        for sequence in plan.sequences:
            if sequence.params.max_draft_tokens == 0:
                continue
            key, history = sequence.sequence_id, sequence.history
            verdict = by_id.get(key)
            if verdict is not None and verdict.finish is not None:
                history = np.append(history, np.array(verdict.tokens, np.int32))
            elif sequence.start >= sequence.num_prompt or self._knows(key, len(history)):
                continue
            self._follow(key, history, sequence.num_prompt, sequence.cache_salt)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """End the texts of ended sequences; they stay in the trie. Unknown ids are ignored."""
        for sequence_id in sequence_ids:
            text = self._texts.pop(sequence_id, None)
            if text is not None:
                self.cache.finish(text)

    def _knows(self, key: SequenceId, length: int) -> bool:
        text = self._texts.get(key)
        return text is not None and self.cache.tree(text).length(text.number) >= length

    def _follow(
        self, key: SequenceId, tokens: NDArray[np.int32], num_prompt: int, salt: str
    ) -> CachedText:
        """The sequence's text with all of its tokens."""
        text = self._texts.get(key)
        if text is None or not self.cache.follow(text, tokens):
            if text is not None:
                self.cache.finish(text)
            text = self._texts[key] = self.cache.begin(salt, num_prompt)
            self.cache.follow(text, tokens)
        return text
