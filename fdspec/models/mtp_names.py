# SPDX-License-Identifier: Apache-2.0
"""What multi-token prediction layers are called in the checkpoints of several model families."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from fdspec.models.family import HUGGING_FACE_NAMES, TensorNames


@dataclass(frozen=True, slots=True)
class MTPNames:
    """Names without `.weight`; `{layer}` is the number of layers of the target.

    Attributes:
        block: what stands before the names of the decoder layer's tensors.
        embedding_norm, hidden_norm: norms of the two inputs.
        projection: [hidden, 2 * hidden], joins them.
        final_norm: before the output matrix; empty if it is the target's.
        hidden_first: the projection takes the hidden state before the embedding.
        carries_normalized: the next draft reads the output after the final norm.
    """

    block: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str = ""
    hidden_first: bool = False
    carries_normalized: bool = False

    def at(self, num_layers: int) -> MTPNames:
        """The names for a target of so many layers."""
        texts = {
            field: getattr(self, field).format(layer=num_layers)
            for field in ("block", "embedding_norm", "hidden_norm", "projection", "final_norm")
        }
        return replace(self, **texts)

    @property
    def layer_names(self) -> TensorNames:
        """Tensors of the decoder layer."""
        prefix = "model.layers.{layer}"
        texts = {
            field: getattr(HUGGING_FACE_NAMES, field).replace(prefix, self.block)
            for field in HUGGING_FACE_NAMES.__dataclass_fields__
        }
        return TensorNames(**texts)


ERNIE = MTPNames(
    block="model.mtp_block.0",
    embedding_norm="model.mtp_emb_norm.0",
    hidden_norm="model.mtp_hidden_norm.0",
    projection="model.mtp_linear_proj.0",
    carries_normalized=True,
)
"""Also what fdspec's own training writes."""

LAYOUTS = (
    ERNIE,
    # DeepSeek-V3 and GLM-4: a further layer of the model.
    MTPNames(
        block="model.layers.{layer}",
        embedding_norm="model.layers.{layer}.enorm",
        hidden_norm="model.layers.{layer}.hnorm",
        projection="model.layers.{layer}.eh_proj",
        final_norm="model.layers.{layer}.shared_head.norm",
    ),
    # MiMo.
    MTPNames(
        block="model.mtp_layers.0",
        embedding_norm="model.mtp_layers.0.token_layernorm",
        hidden_norm="model.mtp_layers.0.hidden_layernorm",
        projection="model.mtp_layers.0.input_proj",
        final_norm="model.mtp_layers.0.final_layernorm",
        hidden_first=True,
    ),
    # Qwen3-Next.
    MTPNames(
        block="mtp.layers.0",
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        final_norm="mtp.norm",
    ),
)


def find_layout(names: Collection[str], num_layers: int) -> MTPNames | None:
    """The layout of a checkpoint with tensors of these names; None if it has no such layer.

    Args:
        names: of all tensors.
        num_layers: of the target.
    """
    for layout in LAYOUTS:
        placed = layout.at(num_layers)
        if f"{placed.projection}.weight" in names:
            return placed
    return None
