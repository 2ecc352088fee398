# SPDX-License-Identifier: Apache-2.0
"""SpeculativeConfig: who drafts, how many tokens, and how drafts are verified.

The keys of `speculative_config`. Never changes which tokens come out, unless a debugging or a lossy
setting says so. Read by spec_decode, the scheduler and the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.options import option, options_of

Method = Literal["ngram", "naive"]
VerifyStrategy = Literal["target_match", "greedy", "rejection", "topp"]
AcceptPolicy = Literal["normal", "accept_all", "reject_all"]

MAX_SPECULATIVE_TOKENS = 511


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Speculative decoding; `None` in its place means plain decoding.

    `method: naive` sets num_speculative_tokens to 0; `benchmark_mode` sets accept_policy to
    reject_all.
    """

    method: Method = option(
        help="Who drafts: ngram copies what followed the latest tokens earlier in the prompt or "
        "the output; naive drafts nothing and runs the same path (a baseline).",
    )
    num_speculative_tokens: int = option(
        5,
        minimum=0,
        maximum=MAX_SPECULATIVE_TOKENS,
        help="Most draft tokens for one sequence in one step.",
    )
    max_ngram_size: int = option(
        5,
        minimum=1,
        maximum=64,
        help="ngram: longest run of tokens that is looked up, tried first.",
    )
    min_ngram_size: int = option(
        2, minimum=1, maximum=64, help="ngram: shortest run of tokens that is looked up."
    )
    verify_strategy: VerifyStrategy = option(
        "target_match",
        help="target_match and greedy keep every token equal to plain decoding; rejection keeps "
        "the distribution; topp is lossy.",
    )
    accept_policy: AcceptPolicy = option(
        "normal",
        help="For debugging: accept_all keeps wrong drafts too, reject_all rejects right ones too.",
    )
    benchmark_mode: bool = option(
        False, help="Accept exactly one token in each step, to measure the cost of a step."
    )
    adaptive_draft_length: bool = option(
        True,
        help="Shorten a sequence's drafts, down to none, while they keep missing, and lengthen "
        "them again once they would have been right. What a row costs is measured at start.",
    )
    disable_by_batch_size: int | None = option(
        None, minimum=1, help="Draft nothing while at least this many sequences are running."
    )

    def __post_init__(self) -> None:
        if self.method == "naive":
            object.__setattr__(self, "num_speculative_tokens", 0)
        if self.benchmark_mode and self.accept_policy == "accept_all":
            raise Contradiction(
                ("benchmark_mode", "accept_policy"),
                "benchmark_mode rejects every draft, accept_policy: accept_all keeps every draft; "
                "leave one of them out",
            )
        if self.benchmark_mode:
            object.__setattr__(self, "accept_policy", "reject_all")
        check_numbers(self)
        if self.method != "naive" and self.num_speculative_tokens < 1:
            raise Contradiction(
                ("method", "num_speculative_tokens"),
                f"method: {self.method} needs num_speculative_tokens of at least 1, got "
                f"{self.num_speculative_tokens}; use method: naive, or turn speculation off with "
                "speculative_config: off",
            )
        if self.min_ngram_size > self.max_ngram_size:
            raise Contradiction(
                ("min_ngram_size", "max_ngram_size"),
                f"min_ngram_size ({self.min_ngram_size}) must not exceed max_ngram_size "
                f"({self.max_ngram_size})",
            )

    @property
    def is_lossless(self) -> bool:
        """True if the output has plain decoding's distribution (its tokens, but for rejection)."""
        return self.verify_strategy != "topp" and self.accept_policy != "accept_all"


def fill_ngram_sizes(values: dict[str, object]) -> None:
    """If only one of the two n-gram sizes is set, let the other one's default give way to it."""
    if ("max_ngram_size" in values) == ("min_ngram_size" in values):
        return
    defaults = {option.path[-1]: option.default for option in options_of(SpeculativeConfig)}
    largest = values.get("max_ngram_size", defaults["max_ngram_size"])
    smallest = values.get("min_ngram_size", defaults["min_ngram_size"])
    assert isinstance(largest, int) and isinstance(smallest, int)
    if smallest > largest:
        given = "max_ngram_size" if "max_ngram_size" in values else "min_ngram_size"
        values["max_ngram_size"] = values["min_ngram_size"] = values[given]
