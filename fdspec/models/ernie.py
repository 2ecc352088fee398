# SPDX-License-Identifier: Apache-2.0
"""ERNIE-4.5: Llama whose rotation turns neighbouring dimensions of a head, dense or with experts.

Rows of query and key are put in the order for rotating halves when they are loaded. Scores are sums
over the same products, so nothing else changes.
"""

from dataclasses import replace

from fdspec.core.errors import CheckpointError
from fdspec.models.config_keys import ConfigKeys
from fdspec.models.experts import ExpertsConfig
from fdspec.models.family import Family

_SMALLEST_SUM = 1e-12


def read_experts(keys: ConfigKeys) -> ExpertsConfig:
    """The mixture of experts: every interval-th layer from the first to the last that has one."""
    gate = keys.raw("moe_gate_act")
    if gate not in (None, "softmax"):
        raise CheckpointError(
            f"{keys.file}: moe_gate_act {gate!r} is not supported; only softmax is"
        )
    num_layers = keys.integer("num_hidden_layers")
    last = keys.integer("moe_layer_end_index", -1)
    interval = keys.integer("moe_layer_interval", 1)
    if interval < 1:
        keys.fail("moe_layer_interval", interval, "at least 1")
    first = keys.integer("moe_layer_start_index", 1)
    end = num_layers if last < 0 else min(last + 1, num_layers)
    layers = tuple(layer for layer in range(first, end) if (layer + 1) % interval == 0)
    return ExpertsConfig(
        layers=layers,
        num_experts=keys.integer("moe_num_experts"),
        num_chosen=keys.integer("moe_k"),
        intermediate_size=keys.integer("moe_intermediate_size"),
        num_shared=keys.integer("moe_num_shared_experts", 0),
        has_bias=keys.raw("moe_use_aux_free") is not False,
        smallest_sum=keys.number("moe_norm_min", _SMALLEST_SUM),
    )


ERNIE4_5 = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    gguf_architecture="ernie4_5",
    has_use_bias=True,
    interleaved_rope=True,
    gguf_interleaved_rope=True,
    default_rope_theta=500000.0,
    ties_by_default=True,
    # The layers that predict further tokens; speculation loads them by itself.
    ignored=("model.mtp_",),
)

ERNIE4_5_MOE = replace(
    ERNIE4_5,
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    gguf_architecture=None,
    read_experts=read_experts,
)
