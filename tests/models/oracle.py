# SPDX-License-Identifier: Apache-2.0
"""The same models in transformers (torch): the real one and tiny random ones of each family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from transformers import (
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama_tied_biased": (
        LlamaConfig,
        LlamaForCausalLM,
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama3_rope": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen2_yarn": (Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": YARN_ROPE}),
    # The heads together are wider than the residual stream, as in Qwen3-0.6B.
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "num_key_value_heads": 1}),
    # The shape of ERNIE-4.5-0.3B: wide heads, a tied output projection, interleaved rotation.
    "ernie": (Ernie4_5Config, Ernie4_5ForCausalLM, {"head_dim": 32, "num_key_value_heads": 1}),
    "ernie_untied_biased": (
        Ernie4_5Config,
        Ernie4_5ForCausalLM,
        {"head_dim": 16, "tie_word_embeddings": False, "use_bias": True},
    ),
    # The first layer dense, shared experts beside the routed ones, as in ERNIE-4.5-21B-A3B.
    "ernie_moe": (
        Ernie4_5_MoeConfig,
        Ernie4_5_MoeForCausalLM,
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "use_bias": True,
        },
    ),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
}


def make_tiny(variant: str, folder: Path, **changes: Any) -> Any:
    """A random checkpoint of a variant of VARIANTS in a folder; returns the torch model."""
    config_class, model_class, options = VARIANTS[variant]
    torch.manual_seed(sum(map(ord, variant)))
    model = model_class(config_class(**{**TINY, **options, **changes})).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            # Norms near one and real biases, so that leaving one out shows.
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    model.save_pretrained(folder)
    return model


def load_smollm2(path: Path) -> Any:
    """The real GGUF file, dequantised into float32."""
    reader = gguf.GGUFReader(path)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rope_theta=100000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()
    state = {_hugging_face_name(tensor.name): _values(tensor) for tensor in reader.tensors}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    return model


def logits_of(model: Any, token_ids: Sequence[int]) -> np.ndarray:
    """[tokens, vocab] float32 of one sequence."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].numpy()


def greedy_choices(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """What the model would choose after the prompt and after each token of an output.

    Equal to the output exactly if greedy generation, EOS ignored, gives that output.
    """
    logits = logits_of(model, [*prompt, *output[:-1]])
    return logits[len(prompt) - 1 :].argmax(axis=1).tolist()


def _hugging_face_name(name: str) -> str:
    parts = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    words = name.split(".")
    if words[0] == "blk":
        return f"model.layers.{words[1]}.{parts[words[2]]}.{words[3]}"
    return f"{parts[words[0]]}.{words[1]}"


def _values(tensor: Any) -> torch.Tensor:
    values = dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
    if heads is not None:
        # The converter to GGUF interleaved the halves of each head.
        rows, columns = values.shape
        values = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
        values = values.reshape(rows, columns)
    return torch.from_numpy(np.array(values, dtype=np.float32))
