# SPDX-License-Identifier: Apache-2.0
"""SpeculativeConfig: who drafts, how many tokens, and how drafts are verified.

The keys of `speculative_config`. Never changes which tokens come out, unless a debugging or a lossy
setting says so. Read by spec_decode, the scheduler and the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.options import option, options_of
from fdspec.config.plugins import PROPOSERS, plugin_names
from fdspec.config.quantization import check_quantization

VerifyStrategy = Literal["target_match", "greedy", "rejection", "topp"]
MTPStrategy = Literal["default", "with_ngram", "ngram_first"]
AcceptPolicy = Literal["normal", "accept_all", "reject_all"]

MAX_SPECULATIVE_TOKENS = 511
DEFAULT_TOKENS = {
    "ngram": 5,
    "suffix": 16,
    "memory": 16,
    "prediction": 16,
    "draft_model": 4,
    "mtp": 3,
    "eagle": 4,
    "eagle3": 4,
}
"""num_speculative_tokens of the methods that draft by themselves."""

MODEL_METHODS = ("draft_model", "mtp", "eagle", "eagle3")
"""Methods that run a model to draft, with a KV cache of its own."""

METHODS = (*DEFAULT_TOKENS, "lookahead", "hybrid", "naive")
_PLUGIN_TOKENS = 5
_TOKENS_WITH_NGRAM = 8
_STEPS_WITH_NGRAM = 3
_LOOKAHEAD_ROWS = "(level - 1) * (window + guess_set_size)"

# What a member of a hybrid decides by itself; everything else belongs to the whole.
_MEMBER_KEYS = (
    *("method", "num_speculative_tokens", "max_ngram_size", "min_ngram_size"),
    *("level", "window", "guess_set_size"),
    *("model", "quantization", "mtp_strategy", "num_model_steps"),
)
_MEMBER_PREFIXES = ("suffix_decoding_", "draft_cache_", "memory_", "plugin_")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Speculative decoding; `None` in its place means plain decoding.

    `method: naive` sets num_speculative_tokens to 0; `benchmark_mode` sets accept_policy to
    reject_all.
    """

    method: str = option(
        choices=lambda: (*METHODS, *plugin_names(PROPOSERS)),
        help="Who drafts: ngram copies what followed the latest tokens earlier in the prompt or "
        "the output; suffix what most often followed them there or in earlier answers; memory "
        "drafts a tree of what followed them in any prompt or answer; prediction drafts from the "
        "`prediction` of a request (which the other methods do as well); lookahead n-grams that "
        "the model itself let fall in a window of guesses beside the draft; draft_model runs a "
        "smaller model with the same tokenizer; mtp, eagle and eagle3 run a head over the model's "
        "hidden states; "
        "hybrid joins several `proposers`; naive drafts "
        "nothing and runs the same path (a baseline). Or the name of an installed plug-in.",
    )
    num_speculative_tokens: int = option(
        None,
        minimum=0,
        maximum=MAX_SPECULATIVE_TOKENS,
        help="Most draft tokens for one sequence in one step; of a tree, all its tokens. Default: "
        "5 for ngram, 4 for draft_model, eagle and eagle3, 3 for mtp (8 with "
        "n-grams), 16 for suffix, memory and prediction, (level - 1) * "
        "(window + guess_set_size) for lookahead, the most of its members for hybrid.",
    )
    model: str | None = option(
        None,
        help="draft_model, mtp, eagle, eagle3: folder, file or hub id of the model or head that "
        "drafts. mtp without it takes the layer in the served model's own checkpoint.",
    )
    quantization: str | None = option(
        None,
        help="draft_model, mtp, eagle, eagle3: weight format of the model or head that drafts, "
        "as for `quantization` of the served model. Default: as its checkpoint has it.",
    )
    mtp_strategy: MTPStrategy = option(
        "default",
        help="mtp: with_ngram lets n-gram matches go on behind the head's drafts; ngram_first asks "
        "the head only where no n-gram matches.",
    )
    num_model_steps: int | None = option(
        None,
        minimum=1,
        maximum=MAX_SPECULATIVE_TOKENS,
        help="mtp: most tokens that the head drafts, one in each pass; n-gram matches may draft "
        "more. Default: num_speculative_tokens, but 3 with n-grams.",
    )
    max_draft_rows: int | None = option(
        None,
        minimum=1,
        maximum=MAX_SPECULATIVE_TOKENS + 1,
        help="Room for draft rows of a sequence in a step, where it is planned apart from "
        "num_speculative_tokens, which must fit into it. Default: num_speculative_tokens.",
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
    suffix_decoding_max_tree_depth: int = option(
        24,
        minimum=2,
        maximum=1024,
        help="suffix: most tokens of a match and the draft after it.",
    )
    suffix_decoding_max_cached_requests: int = option(
        10_000,
        minimum=-1,
        help="suffix: answers that are remembered for other requests, the oldest leave first; 0 "
        "remembers none, -1 is no limit but draft_cache_mib.",
    )
    suffix_decoding_max_spec_factor: float = option(
        1.0,
        minimum=0.0,
        help="suffix: a match of m tokens drafts at most this many times m tokens.",
    )
    suffix_decoding_min_token_prob: float = option(
        0.1,
        minimum=0.0,
        maximum=1.0,
        help="suffix: a draft ends before its probability, by the counts so far, is less.",
    )
    draft_cache_mib: int = option(
        256,
        minimum=1,
        help="suffix, memory: MiB that texts of earlier requests may take; the oldest leave first.",
    )
    memory_snapshot: str | None = option(
        None,
        help="memory: file in which the remembered texts are kept while the server is down. It is "
        "read at the start and written at the end; it holds what users wrote, readable by the "
        "server's user only.",
    )
    level: int = option(4, minimum=3, maximum=16, help="lookahead: N, the length of its n-grams.")
    window: int = option(
        5,
        minimum=1,
        maximum=16,
        help="lookahead: W, columns of the window of N - 1 levels in which n-grams form.",
    )
    guess_set_size: int = option(
        5,
        minimum=1,
        maximum=16,
        help="lookahead: G, n-grams that are kept, and drafted, for each first token.",
    )
    proposers: tuple[SpeculativeConfig, ...] = option(
        (),
        help="hybrid: list of maps, each a method with its own parameters, the preferred one "
        "first. Requests may ask for one of them.",
    )
    plugin_options: Mapping[str, object] | None = option(
        None, help="Of a plug-in: map of its own parameters."
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
        self._check_proposers()
        if self.method == "naive":
            object.__setattr__(self, "num_speculative_tokens", 0)
        elif self.num_speculative_tokens is None:
            object.__setattr__(self, "num_speculative_tokens", self._default_tokens())
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
        if self.max_draft_rows is not None and self.max_draft_rows < self.num_speculative_tokens:
            raise Contradiction(
                ("max_draft_rows", "num_speculative_tokens"),
                f"max_draft_rows ({self.max_draft_rows}) must be at least num_speculative_tokens "
                f"({self.num_speculative_tokens})"
                + (f", which is {_LOOKAHEAD_ROWS}" if self.method == "lookahead" else ""),
            )
        check_quantization("quantization", self.quantization)
        self._check_model()
        self._check_mtp()
        if self.min_ngram_size > self.max_ngram_size:
            raise Contradiction(
                ("min_ngram_size", "max_ngram_size"),
                f"min_ngram_size ({self.min_ngram_size}) must not exceed max_ngram_size "
                f"({self.max_ngram_size})",
            )

    def _default_tokens(self) -> int:
        if self.proposers:
            return max(member.num_speculative_tokens for member in self.proposers)
        if self.method == "lookahead":
            return (self.level - 1) * (self.window + self.guess_set_size)
        if self.mtp_strategy != "default":
            return _TOKENS_WITH_NGRAM
        return DEFAULT_TOKENS.get(self.method, _PLUGIN_TOKENS)

    def _check_model(self) -> None:
        if self.method in MODEL_METHODS and self.method != "mtp" and not self.model:
            raise Contradiction(
                ("method", "model"),
                f"method: {self.method} needs model, the folder, file or hub id of the model or "
                "head that drafts",
            )
        if self.model is not None and self.method not in MODEL_METHODS:
            raise Contradiction(
                ("model", "method"),
                f"model is for methods {', '.join(MODEL_METHODS)}; {self.method} runs no model",
            )

    def _check_mtp(self) -> None:
        if self.method != "mtp":
            for key, unset in (("mtp_strategy", "default"), ("num_model_steps", None)):
                if getattr(self, key) != unset:
                    raise Contradiction((key, "method"), f"{key} is for method mtp")
            return
        count = self.num_speculative_tokens
        if self.num_model_steps is None:
            most = count if self.mtp_strategy == "default" else _STEPS_WITH_NGRAM
            object.__setattr__(self, "num_model_steps", min(count, most))
        elif self.num_model_steps > count:
            raise Contradiction(
                ("num_model_steps", "num_speculative_tokens"),
                f"num_model_steps ({self.num_model_steps}) must not exceed num_speculative_tokens "
                f"({count})",
            )

    def _check_proposers(self) -> None:
        if self.proposers and self.method != "hybrid":
            raise Contradiction(
                ("proposers", "method"), f"proposers need method: hybrid, got {self.method}"
            )
        if self.method != "hybrid":
            return
        names = [member.method for member in self.proposers]
        if not names or "hybrid" in names or "naive" in names or len(set(names)) < len(names):
            raise Contradiction(
                ("proposers", "method"),
                "method: hybrid needs proposers, a list of maps with different methods other than "
                f'hybrid and naive, such as [{{"method": "suffix"}}, {{"method": "ngram"}}]; got '
                f"{names}",
            )
        for member in self.proposers:
            for known in options_of(SpeculativeConfig):
                key = known.path[-1]
                is_own = key in _MEMBER_KEYS or key.startswith(_MEMBER_PREFIXES)
                if not is_own and getattr(member, key) != known.default:
                    raise Contradiction(
                        ("proposers",),
                        f"proposers: {key} of {member.method} belongs to the hybrid as a whole; "
                        "set it beside proposers",
                    )

    @property
    def members(self) -> tuple[SpeculativeConfig, ...]:
        """The methods that draft: those of a hybrid, or this one."""
        return self.proposers or (self,)

    @property
    def draft_rows(self) -> int:
        """Most draft rows of a sequence in a step."""
        return self.max_draft_rows or self.num_speculative_tokens

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


def fill_method(values: dict[str, object]) -> None:
    """A model to draft with, and no method: that is what a draft model is."""
    if values.get("model") is not None:
        values.setdefault("method", "draft_model")
