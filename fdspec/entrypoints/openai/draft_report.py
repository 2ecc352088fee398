# SPDX-License-Identifier: Apache-2.0
"""What speculation did for one request, counted from its token events.

Filled by the choices of a request; read into `usage.speculative` and `speculate_metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fdspec.core import DraftStats, TokenEvent


@dataclass(slots=True)
class DraftCounts:
    """Draft tokens in all, by position and by source.

    Attributes:
        num_drafted: tokens that were verified.
        num_accepted: of those, how many were kept.
        drafted: drafted[i] drafts had a token at position i, from 0, that was verified; in a tree
            the position is the depth, and siblings count once.
        accepted: accepted[i] drafts had one there that was kept.
        by_source: (drafted, accepted) tokens of each proposer.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, draft: DraftStats) -> None:
        """Count one draft."""
        self.num_drafted += draft.num_drafted
        self.num_accepted += draft.num_accepted
        num_positions = draft.num_positions or draft.num_drafted
        self._grow(num_positions)
        for position in range(num_positions):
            self.drafted[position] += 1
        for position in range(draft.num_accepted):
            self.accepted[position] += 1
        whole = ((draft.source, draft.num_drafted, draft.num_accepted),)
        for source, num_drafted, num_accepted in draft.by_source or whole:
            self._add_source(source, num_drafted, num_accepted)

    def merge(self, other: DraftCounts) -> None:
        """Add the counts of another."""
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        for source, counts in other.by_source.items():
            self._add_source(source, *counts)
        self._grow(len(other.drafted))
        for position, (drafted, accepted) in enumerate(
            zip(other.drafted, other.accepted, strict=True)
        ):
            self.drafted[position] += drafted
            self.accepted[position] += accepted

    def _add_source(self, source: str, num_drafted: int, num_accepted: int) -> None:
        drafted, accepted = self.by_source.get(source, (0, 0))
        self.by_source[source] = (drafted + num_drafted, accepted + num_accepted)

    def _grow(self, length: int) -> None:
        missing = length - len(self.drafted)
        self.drafted.extend([0] * missing)
        self.accepted.extend([0] * missing)


@dataclass(slots=True)
class DraftReport:
    """Counters over decode steps; the step that ends the prompt is not one of them.

    Attributes:
        num_steps: steps that brought tokens after the first ones.
        num_step_tokens: the tokens that they brought.
        drafts: what was drafted in them.
    """

    num_steps: int = 0
    num_step_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)

    def count(self, event: TokenEvent) -> None:
        """Add one event."""
        if event.tokens and event.index > 0:
            self.num_steps += 1
            self.num_step_tokens += len(event.tokens)
        if event.draft is not None:
            self.drafts.add(event.draft)

    def merge(self, other: DraftReport) -> None:
        """Add the counts of another."""
        self.num_steps += other.num_steps
        self.num_step_tokens += other.num_step_tokens
        self.drafts.merge(other.drafts)

    def usage(self) -> dict[str, Any]:
        """The object `usage.speculative`."""
        drafts = self.drafts
        num_drafted, num_accepted = drafts.num_drafted, drafts.num_accepted
        return {
            "num_steps": self.num_steps,
            "num_drafted_tokens": num_drafted,
            "num_accepted_tokens": num_accepted,
            "acceptance_rate": ratio(num_accepted, num_drafted),
            "mean_tokens_per_step": ratio(self.num_step_tokens, self.num_steps),
            "drafted_per_position": drafts.drafted,
            "accepted_per_position": drafts.accepted,
            "by_source": {
                source: {"num_drafted_tokens": drafted, "num_accepted_tokens": accepted}
                for source, (drafted, accepted) in drafts.by_source.items()
            },
        }

    def prediction_usage(self) -> dict[str, int]:
        """OpenAI's counts in `usage.completion_tokens_details`."""
        drafted, accepted = self.drafts.by_source.get("prediction", (0, 0))
        return {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }

    def fastdeploy_metrics(self) -> dict[str, Any]:
        """The object `speculate_metrics` of a choice, as FastDeploy names it."""
        drafts = self.drafts
        num_drafted, num_accepted = drafts.num_drafted, drafts.num_accepted
        return {
            "accepted_tokens": num_accepted,
            "rejected_tokens": num_drafted - num_accepted,
            "accept_ratio": ratio(num_accepted, num_drafted),
            "average_accept_length": ratio(self.num_step_tokens, self.num_steps),
            "accepted_tokens_per_head": drafts.accepted,
            "accept_ratio_per_head": [
                ratio(accepted, drafted)
                for accepted, drafted in zip(drafts.accepted, drafts.drafted, strict=True)
            ],
        }


def ratio(part: int, whole: int) -> float:
    """part / whole to four digits; 0 if there is nothing."""
    return round(part / whole, 4) if whole else 0.0
