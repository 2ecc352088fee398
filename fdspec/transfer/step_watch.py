# SPDX-License-Identifier: Apache-2.0
"""StepWatch: how many layers of the running step have their keys and values in the cache."""

from __future__ import annotations

from collections.abc import Callable


class StepWatch:
    """Reads a counter that each step starts again at 0 and ends at `num_layers`.

    Until the step begins, the counter still shows the step before; so full counts are not believed
    until a smaller one has been seen. A step that is over before anybody looks shows nothing.

    Args:
        counter: e.g. `StepProgram.num_layers_appended` of the program that runs.
        num_layers: what it counts up to.
    """

    def __init__(self, counter: Callable[[], int], num_layers: int) -> None:
        self._counter = counter
        self._num_layers = num_layers
        self._has_begun = False

    def num_ready(self) -> int:
        """Layers that can be read now."""
        count = self._counter()
        self._has_begun |= count < self._num_layers
        return count if self._has_begun else 0
