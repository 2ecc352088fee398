# SPDX-License-Identifier: Apache-2.0
"""Adam with decoupled weight decay. Owns the moments, which checkpoints keep; the trainer owns the
schedule.

arXiv 1412.6980 and 1711.05101. Muon needs fewer steps, but gains nothing on a CPU: to orthogonalise
the changes of the matrices takes several times as long as the gradients of a small step.
"""

from __future__ import annotations

from collections.abc import Mapping

import paddle

_MOMENTA = (0.9, 0.98)
_EPSILON = 1e-8


class Adam:
    """The optimiser of one head.

    Args:
        weights: tensors that `update` changes in place; their gradients are read and cleared.
        weight_decay: of matrices, times the learning rate.

    Attributes:
        state: tensors that must be kept to go on later.
    """

    def __init__(self, weights: Mapping[str, paddle.Tensor], weight_decay: float) -> None:
        self._weights = weights
        self._weight_decay = weight_decay
        self.state = {
            f"{moment}.{name}": paddle.zeros_like(weight)
            for name, weight in weights.items()
            for moment in ("first", "second")
        }

    def update(self, step: int, learning_rate: float) -> None:
        """Change the weights by their gradients.

        Args:
            step: 0, 1, ...
            learning_rate: of this step.
        """
        with paddle.no_grad():
            for name in self._weights:
                self._update_one(name, step, learning_rate)

    def _update_one(self, name: str, step: int, learning_rate: float) -> None:
        weight = self._weights[name]
        first, second = self.state[f"first.{name}"], self.state[f"second.{name}"]
        beta1, beta2 = _MOMENTA
        gradient = weight.grad
        first.scale_(beta1).add_(gradient * (1 - beta1))
        second.scale_(beta2).add_(gradient * gradient * (1 - beta2))
        deviation = paddle.sqrt(second / (1 - beta2 ** (step + 1))) + _EPSILON
        change = first / deviation * (learning_rate / (1 - beta1 ** (step + 1)))
        if len(weight.shape) == 2:
            weight.scale_(1 - learning_rate * self._weight_decay)
        weight.subtract_(change)
        weight.clear_gradient(False)
