# SPDX-License-Identifier: Apache-2.0
"""EAGLE heads against their definition in numpy, from folders as they are published."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fdspec.core.drafting import DraftShare
from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.kv.cache import KVCache, KVCacheLayout
from fdspec.models import ModelOptions, load_model
from fdspec.models.eagle_loading import load_eagle, load_eagle3
from fdspec.ops import dequantize_weight
from fdspec.utils.bfloat16 import from_bfloat16, to_bfloat16
from fdspec.worker.head_runner import HeadRunner, draft_head_layers
from tests.models.oracle import make_tiny

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, DRAFTED = 64, 96, 4, 2, 16, 320, 50
TAPS = [1, 2, 3]
LOADERS = {"eagle": load_eagle, "eagle3": load_eagle3}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_tiny("llama", folder)
    return load_model(folder, ModelOptions(quantization="none", max_model_len=64))


def write_head(folder, kind: str, **changes: object) -> dict[str, np.ndarray]:
    """A random head in a folder; returns its tensors."""
    layer = "layers.0" if kind == "eagle" else "midlayer"
    inputs = HIDDEN if kind == "eagle" else 2 * HIDDEN
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (VOCAB, HIDDEN),
        "fc": (HIDDEN, 2 * HIDDEN if kind == "eagle" else len(TAPS) * HIDDEN),
        f"{layer}.self_attn.q_proj": (HEADS * HEAD_DIM, inputs),
        f"{layer}.self_attn.k_proj": (KV_HEADS * HEAD_DIM, inputs),
        f"{layer}.self_attn.v_proj": (KV_HEADS * HEAD_DIM, inputs),
        f"{layer}.self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}.post_attention_layernorm": (HIDDEN,),
        f"{layer}.mlp.gate_proj": (WIDE, HIDDEN),
        f"{layer}.mlp.up_proj": (WIDE, HIDDEN),
        f"{layer}.mlp.down_proj": (HIDDEN, WIDE),
    }
    if kind == "eagle3":
        shapes |= dict.fromkeys(["midlayer.input_layernorm", "midlayer.hidden_norm"], (HIDDEN,))
        shapes |= {"norm": (HIDDEN,), "lm_head": (DRAFTED, HIDDEN)}
    source = np.random.default_rng(3)
    tensors: dict[str, np.ndarray] = {
        f"{name}.weight": source.normal(len(shape) == 1, 0.15, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    if kind == "eagle":
        tensors["fc.bias"] = source.normal(0, 0.2, HIDDEN).astype(np.float32)
    else:
        ids = np.sort(source.choice(VOCAB, DRAFTED, replace=False))
        tensors["d2t"] = ids - np.arange(DRAFTED)
        tensors["t2d"] = np.isin(np.arange(VOCAB), ids)
    facts = {
        **{"hidden_size": HIDDEN, "intermediate_size": WIDE, "num_attention_heads": HEADS},
        **{"num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0},
        **{"draft_vocab_size": DRAFTED, "eagle_aux_hidden_state_layer_ids": TAPS, **changes},
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(facts))
    save_file(tensors, folder / "model.safetensors")
    return tensors


class Reference:
    """The definition, one row at a time, in float32."""

    def __init__(self, kind: str, tensors: dict[str, np.ndarray], target) -> None:
        self.kind, self.tensors = kind, tensors
        self.layer = "layers.0" if kind == "eagle" else "midlayer"
        self.embedding = dequantize_weight(target.embedding.packed_weight)
        self.final_norm = target.norm.parameters_of_rows[0]
        self.output = dequantize_weight(target.output.packed_weight)
        self.epsilon = target.config.rms_norm_eps
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def w(self, name: str) -> np.ndarray:
        return self.tensors[f"{name}.weight"]

    def norm(self, x: np.ndarray, weight: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + epsilon) * weight

    def target_state(self, taps: list[np.ndarray]) -> np.ndarray:
        if self.kind == "eagle":
            return self.norm(taps[0], self.final_norm, self.epsilon)
        return self.w("fc") @ np.concatenate(taps)

    def row(self, token: int, state: np.ndarray, position: int) -> tuple[int, np.ndarray]:
        """The most likely next token, and the output."""
        layer, embedded = self.layer, self.embedding[token]
        if self.kind == "eagle":
            x = self.w("fc") @ np.concatenate([embedded, state]) + self.tensors["fc.bias"]
            residual = x
        else:
            x = np.concatenate(
                [
                    self.norm(embedded, self.w("midlayer.input_layernorm")),
                    self.norm(state, self.w("midlayer.hidden_norm")),
                ]
            )
            residual = state
        query, key, value = (
            (self.w(f"{layer}.self_attn.{name}_proj") @ x).reshape(-1, HEAD_DIM) for name in "qkv"
        )
        self.keys.append(self.rotate(key, position))
        self.values.append(value)
        query = self.rotate(query, position)
        heads = []
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = np.array([k[kv_head] @ query[head] for k in self.keys]) / HEAD_DIM**0.5
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            heads.append(sum(w * v[kv_head] for w, v in zip(weights, self.values, strict=True)))
        x = residual + self.w(f"{layer}.self_attn.o_proj") @ np.concatenate(heads)
        normed = self.norm(x, self.w(f"{layer}.post_attention_layernorm"))
        gate = self.w(f"{layer}.mlp.gate_proj") @ normed
        up = self.w(f"{layer}.mlp.up_proj") @ normed
        x = x + self.w(f"{layer}.mlp.down_proj") @ (gate / (1 + np.exp(-gate)) * up)
        if self.kind == "eagle":
            return int((self.output @ x).argmax()), x
        best = int((self.w("lm_head") @ self.norm(x, self.w("norm"))).argmax())
        return best + int(self.tensors["d2t"][best]), x

    def rotate(self, x: np.ndarray, position: int) -> np.ndarray:
        angles = position * 10000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        first, second = x[:, : HEAD_DIM // 2], x[:, HEAD_DIM // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)


@pytest.mark.parametrize("kind", LOADERS)
def test_drafts_are_those_of_the_definition(target, tmp_path, kind):
    tensors = write_head(tmp_path, kind)
    head = LOADERS[kind](tmp_path, target, "none")
    assert head.taps == ((3,) if kind == "eagle" else (1, 2, 3))
    groups = draft_head_layers(head, dtype="float32", num_scratch_blocks=0)
    cache = KVCache(KVCacheLayout(1, 1, 8, 16, "float32", groups), num_blocks=3)
    runner = HeadRunner(head, cache, 0)
    reference = Reference(kind, tensors, target)
    source = np.random.default_rng(5)
    tokens = source.integers(0, VOCAB, 21).astype(np.int32)
    blocks = (2, 0)
    states = to_bfloat16(source.normal(0, 1, (len(head.taps), 20, HIDDEN)).astype(np.float32))
    for (array,), rows in zip(cache.extra[0], states, strict=True):
        flat = array.reshape(-1, HIDDEN)
        flat[32:48], flat[:4] = rows[:16], rows[16:]
    for slot in range(1, 21):
        state = reference.target_state([from_bfloat16(rows[slot - 1]) for rows in states])
        token, out = reference.row(int(tokens[slot]), state, slot)
    # In two chunks; then two drafts on its own states.
    runner.run([DraftShare(0, tokens[:7], blocks, wants_next=False)])
    result = runner.run([DraftShare(7, tokens[7:], blocks, wants_next=True)])
    for slot in (21, 22, 23):
        assert result.hidden is not None
        assert result.tokens.tolist() == [token]
        np.testing.assert_allclose(result.hidden[0], out, rtol=2e-3, atol=2e-3)
        share = DraftShare(slot, np.array([token], np.int32), blocks, wants_next=True)
        result = runner.run([share], result.hidden)
        token, out = reference.row(token, out, slot)
    cache.close()


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("eagle", {"hidden_size": 32}, "is for a model of hidden_size 32, the served one has 64"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [1, 9]}, "the served model has layers 1 ."),
        ("eagle3", {"draft_vocab_size": 40}, r"has shape \[50, 64\], the model needs \[40, 64\]"),
    ],
)
def test_what_does_not_fit(target, tmp_path, kind, change, message):
    write_head(tmp_path, kind, **change)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        LOADERS[kind](tmp_path, target, "none")
