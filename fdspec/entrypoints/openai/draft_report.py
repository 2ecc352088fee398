# SPDX-License-Identifier: Apache-2.0
"""What speculation did for one request, counted from its token events by draft position.

Filled by the choices of a request; read into `usage.speculative` and `speculate_metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fdspec.core import DraftStats, TokenEvent


@dataclass(slots=True)
class PositionCounts:
    """Draft tokens by their position in the draft, from 0.

    Attributes:
        drafted: drafted[i] drafts had a token at position i that was verified.
        accepted: accepted[i] of those tokens were kept.
    """

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, draft: DraftStats) -> None:
        """Count one draft."""
        self._grow(draft.num_drafted)
        for position in range(draft.num_drafted):
            self.drafted[position] += 1
        for position in range(draft.num_accepted):
            self.accepted[position] += 1

    def merge(self, other: PositionCounts) -> None:
        """Add the counts of another."""
        self._grow(len(other.drafted))
        for position, (drafted, accepted) in enumerate(
            zip(other.drafted, other.accepted, strict=True)
        ):
            self.drafted[position] += drafted
            self.accepted[position] += accepted

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
        positions: draft tokens by position.
    """

    num_steps: int = 0
    num_step_tokens: int = 0
    positions: PositionCounts = field(default_factory=PositionCounts)

    def count(self, event: TokenEvent) -> None:
        """Add one event."""
        if event.tokens and event.index > 0:
            self.num_steps += 1
            self.num_step_tokens += len(event.tokens)
        if event.draft is not None:
            self.positions.add(event.draft)

    def merge(self, other: DraftReport) -> None:
        """Add the counts of another."""
        self.num_steps += other.num_steps
        self.num_step_tokens += other.num_step_tokens
        self.positions.merge(other.positions)

    def usage(self) -> dict[str, Any]:
        """The object `usage.speculative`."""
        num_drafted, num_accepted = sum(self.positions.drafted), sum(self.positions.accepted)
        return {
            "num_steps": self.num_steps,
            "num_drafted_tokens": num_drafted,
            "num_accepted_tokens": num_accepted,
            "acceptance_rate": ratio(num_accepted, num_drafted),
            "mean_tokens_per_step": ratio(self.num_step_tokens, self.num_steps),
            "drafted_per_position": self.positions.drafted,
            "accepted_per_position": self.positions.accepted,
        }

    def fastdeploy_metrics(self) -> dict[str, Any]:
        """The object `speculate_metrics` of a choice, as FastDeploy names it."""
        num_drafted, num_accepted = sum(self.positions.drafted), sum(self.positions.accepted)
        return {
            "accepted_tokens": num_accepted,
            "rejected_tokens": num_drafted - num_accepted,
            "accept_ratio": ratio(num_accepted, num_drafted),
            "average_accept_length": ratio(self.num_step_tokens, self.num_steps),
            "accepted_tokens_per_head": self.positions.accepted,
            "accept_ratio_per_head": [
                ratio(accepted, drafted)
                for accepted, drafted in zip(
                    self.positions.accepted, self.positions.drafted, strict=True
                )
            ],
        }


def ratio(part: int, whole: int) -> float:
    """part / whole to four digits; 0 if there is nothing."""
    return round(part / whole, 4) if whole else 0.0
