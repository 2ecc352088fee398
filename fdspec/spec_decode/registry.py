# SPDX-License-Identifier: Apache-2.0
"""Which proposer a method names. Called by `engine/build.py`; config maps foreign names."""

from __future__ import annotations

from fdspec.config import SpeculativeConfig
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts


def build_proposer(config: SpeculativeConfig | None, costs: StepCosts = TYPICAL_COSTS) -> Proposer:
    """The proposer that a configuration asks for.

    Args:
        config: None means plain decoding.
        costs: of steps; they decide how long drafts may be where this is adaptive.
    """
    if config is None or config.method == "naive":
        return NaiveProposer()
    assert config.method == "ngram", config.method
    proposer = NgramProposer(
        config.num_speculative_tokens,
        max_ngram_size=config.max_ngram_size,
        min_ngram_size=config.min_ngram_size,
    )
    return AdaptiveProposer(proposer, costs) if config.adaptive_draft_length else proposer
