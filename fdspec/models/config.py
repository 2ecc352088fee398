# SPDX-License-Identifier: Apache-2.0
"""ModelConfig: what a checkpoint says about its architecture, in one vocabulary.

Owns the checks that the numbers fit together; never reads files (config_reading.py does) and never
imports paddle. Frontend, engine, layers and the weight loader read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models.experts import EXPERT_WIDTH_MULTIPLE, ExpertsConfig

HEAD_DIM_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length of pre-training.

    Attributes:
        kind: linear, dynamic, yarn or llama3 (names of `rope_type` in config.json).
        factor: ratio of the new length to the original one.
        original_max_positions: length of pre-training.
        low_frequency_factor, high_frequency_factor: borders of llama3's smooth band.
        beta_fast, beta_slow: borders of yarn's ramp, in rotations.
        attention_factor: yarn's scale of cos and sin; None computes it from `factor`.
        mscale, mscale_all_dim: yarn's alternative spelling of attention_factor; 0 if unset.
        truncate: yarn rounds its ramp's ends to whole dimensions.
    """

    kind: str
    factor: float
    original_max_positions: int
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture of a decoder-only model.

    Attributes:
        architecture: class name as in config.json; GGUF files get their family's first.
        source: the file that the numbers come from, for errors.
        vocab_size: rows of the embedding; the tokenizer may know fewer ids.
        hidden_size: width of the residual stream.
        intermediate_size: width of the MLP.
        num_layers, num_heads, num_kv_heads, head_dim: shape of the attention stack.
        max_position_embeddings: positions that the model was made for.
        rms_norm_eps: epsilon of every RMSNorm.
        rope_theta: base of the rotary frequencies.
        rope_scaling: None leaves the frequencies alone.
        tie_word_embeddings: the output projection is the embedding.
        qkv_bias, output_bias, mlp_bias: which projections have a bias.
        qk_norm: RMSNorm over each head of query and key before the rotation.
        experts: the mixture of experts; None if every layer has a plain MLP.
        bos_id: beginning-of-sequence token, None if there is none.
        eos_ids: tokens that end a generation.
        dtype: what the checkpoint's weights are stored as, for display.
    """

    architecture: str
    source: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: ExpertsConfig | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = field(default=())
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            if value <= 0:
                self._fail(f"{name} must be positive, got {value}")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                self._fail(f"{name} must be a positive number, got {value}")
        if self.num_heads % self.num_kv_heads:
            self._fail(
                f"num_heads ({self.num_heads}) must be a multiple of "
                f"num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % HEAD_DIM_MULTIPLE:
            self._fail(
                f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} for the attention kernels, "
                f"got {self.head_dim}"
            )
        if self.experts is not None:
            self._check_experts(self.experts)
        if self.rope_scaling is not None and not self.rope_scaling.factor >= 1:
            self._fail(f"the rope scaling factor must be >= 1, got {self.rope_scaling.factor}")

    @property
    def longest_context(self) -> int:
        """Positions that the rotary embedding covers, its scaling included."""
        scaling = self.rope_scaling
        # Checkpoints with llama3 scaling state the stretched length themselves.
        if scaling is None or scaling.kind == "llama3":
            return self.max_position_embeddings
        stretched = int(scaling.original_max_positions * scaling.factor)
        return max(stretched, self.max_position_embeddings)

    def resolve_max_model_len(self, requested: int | None) -> int:
        """The context length to serve. Does not modify.

        Args:
            requested: `max_model_len` of the configuration, None for all that the model has.

        Raises:
            ConfigError: not positive, or more than the model was made for.
        """
        longest = self.longest_context
        if requested is None:
            scaling = self.rope_scaling
            # A longer context would change dynamic frequencies for short sequences, too.
            is_dynamic = scaling is not None and scaling.kind == "dynamic"
            return self.max_position_embeddings if is_dynamic else longest
        if not 1 <= requested <= longest:
            raise ConfigError(
                f"max_model_len must be between 1 and {longest}, the context length of the model "
                f"({self.source}); got {requested}. rope_scaling stretches it: "
                '--rope-scaling \'{"type": "yarn", "factor": 4.0}\''
            )
        return requested

    def _check_experts(self, experts: ExpertsConfig) -> None:
        if complaint := experts.complaint():
            self._fail(complaint)
        if self.hidden_size % EXPERT_WIDTH_MULTIPLE:
            self._fail(
                f"hidden_size must be a multiple of {EXPERT_WIDTH_MULTIPLE} in a model with "
                f"experts, got {self.hidden_size}"
            )

    def _fail(self, message: str) -> None:
        raise CheckpointError(f"{self.source}: {message}")
