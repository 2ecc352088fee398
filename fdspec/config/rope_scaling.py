# SPDX-License-Identifier: Apache-2.0
"""RopeScalingConfig: rotary frequencies other than the checkpoint's, for longer contexts.

The keys of `rope_scaling`, named as in config.json. Read when the model is loaded.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.options import option

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3"]


@dataclass(frozen=True, slots=True)
class RopeScalingConfig:
    """How rotary frequencies are stretched. Without `type` the checkpoint's own scaling counts."""

    type: RopeType | None = option(
        None,
        help="Takes the place of the checkpoint's scaling: linear, dynamic (NTK), yarn, llama3; "
        "default scales nothing. dynamic has the frequencies of a sequence of max_model_len "
        "tokens, for every sequence. Default: the checkpoint's own.",
    )
    factor: float | None = option(
        None, minimum=1.0, help="Ratio of the new context length to the original one."
    )
    original_max_position_embeddings: int | None = option(
        None, minimum=1, help="Context length of pre-training. Default: the checkpoint's."
    )
    low_freq_factor: float = option(1.0, minimum=0.0, help="llama3: slow waves are divided below.")
    high_freq_factor: float = option(4.0, minimum=0.0, help="llama3: fast waves are kept above.")
    beta_fast: float = option(32.0, minimum=0.0, help="yarn: rotations above which waves are kept.")
    beta_slow: float = option(
        1.0, minimum=0.0, help="yarn: rotations below which waves are divided by the factor."
    )
    attention_factor: float | None = option(
        None, minimum=0.0, help="yarn: scale of cosines and sines. Default: from the factor."
    )
    mscale: float = option(0.0, minimum=0.0, help="yarn: another way to set attention_factor.")
    mscale_all_dim: float = option(0.0, minimum=0.0, help="yarn: belongs to mscale.")
    truncate: bool = option(True, help="yarn: round the ends of the ramp to whole dimensions.")

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.type is None:
            changed = [
                field.name
                for field in dataclasses.fields(self)
                if getattr(self, field.name) != field.default
            ]
            if changed:
                raise Contradiction(
                    (changed[0],),
                    f"{changed[0]} needs a type: one of linear, dynamic, yarn, llama3 (or default, "
                    "which scales nothing)",
                )
        elif self.type != "default" and self.factor is None:
            raise Contradiction(("type",), f"type: {self.type} needs a factor, such as 4.0")
        if self.type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise Contradiction(
                ("high_freq_factor", "low_freq_factor"),
                f"high_freq_factor ({self.high_freq_factor:g}) must exceed low_freq_factor "
                f"({self.low_freq_factor:g})",
            )
