# SPDX-License-Identifier: Apache-2.0
"""MTPHead: the draft head as a paddle.nn.Layer with gradients, in float32.

    fused = linear_proj(concat[emb_norm(embed(x[t + 1])), hidden_norm(h[t])])
    out   = final_norm(decoder_layer(fused))        h of the next step, and input of the shared head

h[t] is the target's hidden state after its final norm. Owns the trained weights, under the names of
the written folder; the target's parts are constants. Multi-token prediction: DeepSeek-V3,
arXiv 2412.19437, section 2.2, with the conventions of ERNIE 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import nn

from fdspec.training.target import Floats, Target

_INITIAL_DEVIATION = 0.01
_INITIAL_SCALE = 10.0
"""So that what the layer adds does not drown its input; best of a few at the first steps."""
_LEAST_NORM = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Entries of several conversations, one after the other.

    Attributes:
        hidden: [rows, hidden] float32, h[t] of the target.
        tokens: [steps, rows] int32; row t of step j (from 0) reads token x[t + 1 + j].
        positions: [rows] int32, t of each row in its conversation.
        splits: conversation i owns rows splits[i]..splits[i + 1].
    """

    hidden: Floats
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    splits: tuple[int, ...]


class MTPHead(nn.Layer):
    """The head, started from the target's last layer.

    Args:
        target: what the head shares with the model.
        seed: of the part of the start that is random.
    """

    def __init__(self, target: Target, seed: int) -> None:
        super().__init__()
        config = target.config
        self._target = target
        self._epsilon = config.rms_norm_eps
        self._final_norm = paddle.to_tensor(target.final_norm)
        self._parameter_names = []
        for name, values in _initial_weights(target, seed).items():
            parameter = self.create_parameter(
                values.shape, default_initializer=nn.initializer.Assign(values)
            )
            self.add_parameter(name.replace(".", "__"), parameter)
            self._parameter_names.append(name)

    def weights(self) -> dict[str, paddle.Tensor]:
        """The trained tensors by their names in the folder: [out, in], norms [in]."""
        return {name: self._weight(name) for name in self._parameter_names}

    def load_weights(self, weights: dict[str, Floats]) -> None:
        """Take the values of `weights`, which has every name and shape."""
        for name, values in weights.items():
            self._weight(name).set_value(values)

    def forward(self, rows: Rows, num_steps: int) -> list[paddle.Tensor]:
        """What the head makes of each row when it drafts `num_steps` tokens from there.

        A later step reads the output of the step before in the place of h, one position on. As when
        serving, it sees the entries made of the target's states up to its row, and those of its
        own draft.

        Returns:
            For each step [rows, hidden] after the final norm.
        """
        own: list[tuple[paddle.Tensor, paddle.Tensor]] = []
        outputs = []
        hidden = paddle.to_tensor(rows.hidden)
        for step in range(num_steps):
            embedded = paddle.to_tensor(self._target.embedding[rows.tokens[step]])
            hidden = self._step(hidden, embedded, rows, step, own)
            outputs.append(hidden)
        return outputs

    def _step(
        self,
        hidden: paddle.Tensor,
        embedded: paddle.Tensor,
        rows: Rows,
        step: int,
        own: list[tuple[paddle.Tensor, paddle.Tensor]],
    ) -> paddle.Tensor:
        normalized = [
            self._norm(embedded, "model.mtp_emb_norm.0.weight"),
            self._norm(hidden, "model.mtp_hidden_norm.0.weight"),
        ]
        fused = self._linear(paddle.concat(normalized, axis=-1), "model.mtp_linear_proj.0.weight")
        x = self._norm(fused, _block("input_layernorm"))
        fused = fused + self._attention(x, rows, step, own)
        x = self._norm(fused, _block("post_attention_layernorm"))
        gate = self._linear(x, _block("mlp.gate_proj"))
        up = self._linear(x, _block("mlp.up_proj"))
        fused = fused + self._linear(nn.functional.silu(gate) * up, _block("mlp.down_proj"))
        return _rms_norm(fused, self._final_norm, self._epsilon)

    def _attention(
        self,
        x: paddle.Tensor,
        rows: Rows,
        step: int,
        own: list[tuple[paddle.Tensor, paddle.Tensor]],
    ) -> paddle.Tensor:
        """Adds this step's keys and values to `own`, whose first are those of the target's h."""
        config = self._target.config
        size = config.head_dim
        angles = rows.positions + 1 + step
        cos = paddle.to_tensor(self._target.cos[angles][:, None])
        sin = paddle.to_tensor(self._target.sin[angles][:, None])
        query = self._linear(x, _block("self_attn.q_proj")).reshape([-1, config.num_heads, size])
        key = self._linear(x, _block("self_attn.k_proj")).reshape([-1, config.num_kv_heads, size])
        value = self._linear(x, _block("self_attn.v_proj")).reshape(key.shape)
        own.append((_rotate(key, cos, sin), value))
        query = _rotate(query, cos, sin) * size**-0.5
        attended = [
            _attend(query[low:high], [(k[low:high], v[low:high]) for k, v in own])
            for low, high in zip(rows.splits, rows.splits[1:], strict=False)
        ]
        return self._linear(paddle.concat(attended), _block("self_attn.o_proj"))

    def _linear(self, x: paddle.Tensor, name: str) -> paddle.Tensor:
        return paddle.matmul(x, self._weight(name), transpose_y=True)

    def _norm(self, x: paddle.Tensor, name: str) -> paddle.Tensor:
        return _rms_norm(x, self._weight(name), self._epsilon)

    def _weight(self, name: str) -> paddle.Tensor:
        return self._parameters[name.replace(".", "__")]


def _attend(
    query: paddle.Tensor, entries: Sequence[tuple[paddle.Tensor, paddle.Tensor]]
) -> paddle.Tensor:
    """Attention inside one conversation.

    Args:
        query: [rows, heads, head_dim], scaled.
        entries: keys and values [rows, kv_heads, head_dim]: of the target's states, of which a row
            sees those up to its own; then of each later step, of which it sees its own only.

    Returns:
        [rows, heads * head_dim].
    """
    num_rows, num_heads, size = query.shape
    kv_heads = entries[0][0].shape[1]
    group = num_heads // kv_heads
    # [kv_heads, group * rows, head_dim]: the query heads of one key head beside each other.
    query = query.transpose([1, 0, 2]).reshape([kv_heads, group * num_rows, size])
    key, value = (entry.transpose([1, 0, 2]) for entry in entries[0])
    hidden_from = np.triu(np.full((num_rows, num_rows), -1e30, np.float32), 1)
    mask = paddle.to_tensor(np.tile(hidden_from, (group, 1)))
    scores = [paddle.matmul(query, key, transpose_y=True) + mask]
    own_values = []
    for own_key, own_value in entries[1:]:
        own_key, own_value = (
            entry.transpose([1, 0, 2]).tile([1, group, 1]) for entry in (own_key, own_value)
        )
        scores.append((query * own_key).sum(axis=-1, keepdim=True))
        own_values.append(own_value)
    weights = nn.functional.softmax(paddle.concat(scores, axis=-1), axis=-1)
    result = paddle.matmul(weights[..., :num_rows], value)
    for index, own_value in enumerate(own_values):
        result = result + weights[..., num_rows + index :][..., :1] * own_value
    result = result.reshape([num_heads, num_rows, size]).transpose([1, 0, 2])
    return result.reshape([num_rows, num_heads * size])


def _rms_norm(x: paddle.Tensor, weight: paddle.Tensor, epsilon: float) -> paddle.Tensor:
    return x * paddle.rsqrt((x * x).mean(axis=-1, keepdim=True) + epsilon) * weight


def _rotate(x: paddle.Tensor, cos: paddle.Tensor, sin: paddle.Tensor) -> paddle.Tensor:
    """[rows, heads, head_dim] by [rows, 1, head_dim / 2]: the halves of each head."""
    first, second = paddle.split(x, 2, axis=-1)
    return paddle.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _block(name: str) -> str:
    return f"model.mtp_block.0.{name}.weight"


def _initial_weights(target: Target, seed: int) -> dict[str, Floats]:
    """The target's last layer over its own hidden state, without the next token as yet."""
    width = target.config.hidden_size
    generator = np.random.default_rng(seed)
    projection = generator.standard_normal((width, 2 * width), np.float32) * _INITIAL_DEVIATION
    projection[:, width:] += np.eye(width, dtype=np.float32) * _INITIAL_SCALE
    # Undoes the final norm, behind which h is taken.
    norm = target.final_norm
    undo = 1 / np.where(np.abs(norm) < _LEAST_NORM, np.copysign(_LEAST_NORM, norm), norm)
    return {
        "model.mtp_emb_norm.0.weight": np.ones(width, np.float32),
        "model.mtp_hidden_norm.0.weight": undo / np.sqrt(np.mean(undo * undo)),
        "model.mtp_linear_proj.0.weight": projection,
        **{_block(name): values for name, values in target.last_layer.items()},
    }
