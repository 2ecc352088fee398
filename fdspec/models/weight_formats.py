# SPDX-License-Identifier: Apache-2.0
"""Which formats the matrices of a model get, by kind of layer. Never imports paddle."""

from __future__ import annotations

from dataclasses import dataclass

from fdspec.core.errors import ConfigError
from fdspec.models.config import ModelConfig

# What wint4 means for the dense part of a model with experts, which has few of the weights and most
# of the influence: FastDeploy's choice.
_DENSE_BESIDE = {"wint4": "wint8", "wint4_a16": "wint8_a16"}


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """Names of formats; None keeps what the checkpoint has.

    Attributes:
        dense: of all matrices but routed experts.
        experts: of routed experts.
    """

    dense: str | None
    experts: str | None

    def __str__(self) -> str:
        """For people."""
        dense, experts = (name or "as in the checkpoint" for name in (self.dense, self.experts))
        return dense if dense == experts else f"{dense}, experts {experts}"


def weight_formats(
    config: ModelConfig, quantization: str | None, expert_quantization: str | None
) -> WeightFormats:
    """The formats that a configuration asks for.

    Args:
        config: the model.
        quantization: of the configuration; in a model with experts wint4 alone is wint4 for the
            experts and wint8 for all else.
        expert_quantization: of the configuration; None follows quantization.

    Raises:
        ConfigError: a format for experts, and the model has none.
    """
    if expert_quantization is not None:
        if config.experts is None:
            raise ConfigError(
                f"expert_quantization {expert_quantization}: the model ({config.architecture}, "
                f"{config.source}) has no experts; set quantization alone"
            )
        return WeightFormats(quantization, expert_quantization)
    if config.experts is None or quantization is None:
        return WeightFormats(quantization, quantization)
    return WeightFormats(_DENSE_BESIDE.get(quantization, quantization), quantization)
