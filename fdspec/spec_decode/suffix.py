# SPDX-License-Identifier: Apache-2.0
"""SuffixProposer: drafts what most often followed the latest tokens, here or in earlier answers.

Keeps a suffix tree for each sequence (prompt and output), and one of the outputs of other requests
for each cache salt. Whichever expects more accepted tokens drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.ops import SuffixTree
from fdspec.spec_decode.text_cache import CachedText, TextCache

SOURCE = "suffix"
_OWN_TEXT = 0


class SuffixProposer:
    """Suffix decoding. Implements `core.protocols.Proposer`."""

    def __init__(
        self,
        num_speculative_tokens: int,
        *,
        max_tree_depth: int = 24,
        max_cached_requests: int = 10_000,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        max_bytes: int = 2**28,
    ) -> None:
        """Set the limits.

        Args:
            num_speculative_tokens: most tokens of a draft, at least 1.
            max_tree_depth: most tokens of a match and the draft after it.
            max_cached_requests: outputs that are remembered; 0 is none, -1 no limit.
            max_spec_factor: a match of m tokens drafts at most max_spec_factor * m.
            min_token_prob: a path less probable than this is not drafted.
            max_bytes: most bytes of the remembered outputs.
        """
        assert num_speculative_tokens >= 1, num_speculative_tokens
        self._num_speculative_tokens = num_speculative_tokens
        self._max_tree_depth = max_tree_depth
        self._factor = max_spec_factor
        self._min_probability = min_token_prob
        self._own: dict[SequenceId, SuffixTree] = {}
        self._outputs: dict[SequenceId, CachedText] = {}
        self.cache: TextCache | None = None
        if max_cached_requests != 0:
            self.cache = TextCache(
                max_depth=max_tree_depth,
                max_texts=max_cached_requests if max_cached_requests > 0 else None,
                max_bytes=max_bytes,
            )

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain for each context with a match."""
        drafts = []
        for context in contexts:
            limit = min(context.max_draft, self._num_speculative_tokens)
            own = self._tree_of(context)
            best = own.draft_chain(
                _OWN_TEXT, limit, factor=self._factor, min_probability=self._min_probability
            )
            if self.cache is not None:
                output = self._output_of(context)
                shared = self.cache.tree(output).draft_chain(
                    output.number,
                    limit,
                    factor=self._factor,
                    min_probability=self._min_probability,
                )
                best = shared if shared.score > best.score else best
            if len(best.tokens) > 0:
                drafts.append(Draft.chain(context.sequence_id, best.tokens, SOURCE))
        return drafts

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Take in prompts chunk by chunk, and the whole output of a sequence that ends.

        What comes between is taken in when it is drafted from.
        """
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        for sequence in plan.sequences:
            if sequence.params.max_draft_tokens == 0:
                continue
            key, history = sequence.sequence_id, sequence.history
            if sequence.start < sequence.num_prompt:
                tree = self._own.get(key) or self._new_tree(key)
                if len(history) > tree.length(_OWN_TEXT):
                    tree.follow(_OWN_TEXT, history)
            verdict = by_id.get(key)
            if self.cache is not None and verdict is not None and verdict.finish is not None:
                tokens = np.append(history, np.array(verdict.tokens, np.int32))
                self._output_of(
                    DraftContext(
                        key, tokens, sequence.num_prompt, 0, sequence.params, sequence.cache_salt
                    )
                )

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the trees of ended sequences; their outputs stay. Unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._own.pop(sequence_id, None)
            output = self._outputs.pop(sequence_id, None)
            if output is not None and self.cache is not None:
                self.cache.finish(output)

    def _tree_of(self, context: DraftContext) -> SuffixTree:
        """The sequence's own tree with all of its tokens."""
        tree = self._own.get(context.sequence_id) or self._new_tree(context.sequence_id)
        if not tree.follow(_OWN_TEXT, context.tokens):
            tree = self._new_tree(context.sequence_id)
            tree.follow(_OWN_TEXT, context.tokens)
        return tree

    def _new_tree(self, sequence_id: SequenceId) -> SuffixTree:
        tree = self._own[sequence_id] = SuffixTree(max_depth=self._max_tree_depth)
        tree.add_text()
        return tree

    def _output_of(self, context: DraftContext) -> CachedText:
        """The sequence's output in the shared tree, with all of its tokens."""
        assert self.cache is not None
        key, tokens = context.sequence_id, context.tokens[context.num_prompt :]
        output = self._outputs.get(key)
        if output is None or not self.cache.follow(output, tokens):
            if output is not None:
                self.cache.finish(output)
            output = self._outputs[key] = self.cache.begin(context.cache_salt)
            self.cache.follow(output, tokens)
        return output
