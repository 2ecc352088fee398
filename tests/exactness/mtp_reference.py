# SPDX-License-Identifier: Apache-2.0
"""A random MTP head, and what it drafts according to the head that training uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdspec.core import SamplingParams, SequencePlan, StepPlan
from fdspec.kv.cache import ExtraLayers
from fdspec.models.config import ModelConfig
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.models.mtp import MTPHead
from fdspec.training.draft_folder import write_draft_folder
from fdspec.training.head import MTPHead as TrainedHead
from fdspec.training.head import Rows
from fdspec.training.target import Target
from fdspec.utils.bfloat16 import from_bfloat16, to_bfloat16
from fdspec.worker.model_runner import ModelRunner

NUM_CHECKED = 40


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a head, as it comes back from a file in bfloat16."""
    generator = np.random.default_rng(seed)
    hidden, wide = config.hidden_size, config.intermediate_size
    query = config.num_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    block = "model.mtp_block.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.mtp_emb_norm.0": (hidden,),
        "model.mtp_hidden_norm.0": (hidden,),
        "model.mtp_linear_proj.0": (hidden, 2 * hidden),
        f"{block}.input_layernorm": (hidden,),
        f"{block}.self_attn.q_proj": (query, hidden),
        f"{block}.self_attn.k_proj": (key, hidden),
        f"{block}.self_attn.v_proj": (key, hidden),
        f"{block}.self_attn.o_proj": (hidden, query),
        f"{block}.post_attention_layernorm": (hidden,),
        f"{block}.mlp.gate_proj": (wide, hidden),
        f"{block}.mlp.up_proj": (wide, hidden),
        f"{block}.mlp.down_proj": (hidden, wide),
    }
    return {
        f"{name}.weight": from_bfloat16(
            to_bfloat16(
                generator.normal(len(shape) == 1, 0.3 if len(shape) == 1 else 0.15, shape).astype(
                    np.float32
                )
            )
        )
        for name, shape in shapes.items()
    }


def write_head(folder: Path, config: ModelConfig, token_ids: NDArray[np.int32] | None) -> None:
    """A folder as training writes it."""
    write_draft_folder(
        folder, config, random_weights(config), num_model_steps=3, draft_token_ids=token_ids
    )


def check_against_definition(
    target: LlamaFamilyModel, head: MTPHead, drafts: Mapping[tuple[int, ...], list[int]]
) -> None:
    """Assert that drafts behind tokens are what the head that training uses finds most likely.

    A draft of nearly the same logit is fine, because that one sums in another order.
    """
    shared = Target.of(target)
    reference = TrainedHead(shared, seed=0)
    reference.load_weights(random_weights(target.config))
    ids = head.draft_token_ids
    assert ids is not None
    output = shared.output[ids]
    num_right = num_all = 0
    step = max(len(drafts) // NUM_CHECKED, 1)
    for tokens, drafted in list(drafts.items())[::step]:
        rows = _rows(target, tokens, drafted)
        for hidden, token in zip(reference.forward(rows, len(drafted)), drafted, strict=True):
            logits = output @ hidden.numpy()[-1]
            assert logits.max() - logits[np.flatnonzero(ids == token)[0]] < 1e-2
            num_right += int(ids[logits.argmax()]) == token
            num_all += 1
    assert num_right >= 0.98 * num_all


def _rows(target: LlamaFamilyModel, tokens: tuple[int, ...], drafted: list[int]) -> Rows:
    """The rows of all tokens; the last one goes on with the drafts."""
    count = len(tokens) - 1
    read = np.tile(np.array(tokens[1:], np.int32), (len(drafted), 1))
    read[1:, -1] = drafted[:-1]
    return Rows(
        _final_states(target, tokens[:-1]), read, np.arange(count, dtype=np.int32), (0, count)
    )


def _final_states(target: LlamaFamilyModel, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """[tokens, hidden], after the final norm; computed layer by layer, not by a step program."""
    config = target.config
    states = ExtraLayers(1, 1, 1, config.hidden_size, "bfloat16", taps=(config.num_layers,))
    runner = ModelRunner(
        target,
        num_blocks=1,
        block_size=256,
        kv_cache_dtype="float32",
        use_step_program=False,
        extra=[states],
    )
    sequence = SequencePlan(
        ("reference", 0),
        0,
        np.array(tokens, np.int32),
        len(tokens),
        None,
        (0,),
        SamplingParams(temperature=0.0),
        samples=False,
        next_token=0,
    )
    runner.execute(StepPlan(0, (sequence,)))
    kept = from_bfloat16(runner.cache.extra[0][0][0][0, 0, : len(tokens)])
    runner.close()
    result: NDArray[np.float32] = target.norm.forward(kept)
    return result
