# SPDX-License-Identifier: Apache-2.0
"""WeightFormat and PackedWeight: in which format the weight of a linear layer is held.

Owns the names of the formats. The bytes themselves are described in csrc/linear/packed_weight.h;
quantize_weight.py makes them, weight_only_linear and embedding read them.
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import Any

from fdspec.ops.arrays import Array
from fdspec.ops.dispatch import kernels

GROUP_SIZES = (0, 32, 64, 128)

# Formats by name; "_g32", "_g64", "_g128" or "_channel" sets the group size, "_min" adds a minimum
# to wint4 and "_a16" keeps activations in float.
_NAMES = ("none", "bfloat16", "wint8", "wint4", "wint8_a16", "wint4_a16")
_DEFAULT_WINT4_GROUP = 32


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored and what the activations are multiplied as.

    A weight is `scale * code [+ minimum]`; each group of inputs of an output channel has its own
    scale and minimum, which are float16.

    Attributes:
        bits: 32 (float32), 16 (bfloat16), 8 (codes -127..127; -128 can be packed) or 4 (codes
            -8..7, with a minimum 0..15).
        group_size: inputs in a group: 32, 64 or 128, the last group of a channel may be short; 0
            is one group for the whole channel. 0 for 32 and 16 bits.
        has_minimum: whether a group has an additive minimum; 4 bits only.
        float_activations: False: activations are quantised by row and block of 32 inputs to 8
            bits, and the dot product is one of integers. True (the `_a16` formats): activations
            stay float32. Of no consequence for 32 and 16 bits.

    Raises:
        ValueError: a value or combination is not allowed.
    """

    bits: int
    group_size: int = 0
    has_minimum: bool = False
    float_activations: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (32, 16, 8, 4):
            raise ValueError(f"bits: must be 32, 16, 8 or 4, got {self.bits}")
        if self.group_size not in GROUP_SIZES:
            raise ValueError(f"group_size: must be 0, 32, 64 or 128, got {self.group_size}")
        if self.has_minimum and self.bits != 4:
            raise ValueError(f"has_minimum: only 4-bit weights have minima, got bits={self.bits}")
        if self.bits >= 16 and (self.group_size or self.float_activations):
            raise ValueError(
                f"group_size and float_activations: belong to integer weights, got bits={self.bits}"
            )

    @property
    def is_integer(self) -> bool:
        """True for 8 and 4 bits."""
        return self.bits < 16

    @property
    def zero_point(self) -> int:
        """What is added to a code to store it as an unsigned number."""
        return {8: 128, 4: 0 if self.has_minimum else 8}.get(self.bits, 0)

    @property
    def code_range(self) -> tuple[int, int]:
        """Lowest and highest code that can be stored."""
        return -self.zero_point, 2**self.bits - 1 - self.zero_point

    @staticmethod
    def parse(name: str) -> WeightFormat:
        """Returns the format with a name.

        The names are none (float32), bfloat16, wint8 (one scale for each output channel) and
        wint4 (short for wint4_g32_min), with these endings, in this order: `_channel`, `_g32`,
        `_g64` or `_g128` for the group size, `_min` for a minimum (wint4), `_a16` for float
        activations. With a group size given, wint4 has a minimum only if the name says so.

        Raises:
            ValueError: the name is unknown; the message has the nearest name.
        """
        if name == "none":
            return WeightFormat(32)
        if name == "bfloat16":
            return WeightFormat(16)
        base, *endings = name.split("_")
        bits = {"wint8": 8, "wint4": 4}.get(base)
        sizes = {f"g{size}" if size else "channel": size for size in GROUP_SIZES}
        group_size = sizes[endings.pop(0)] if endings and endings[0] in sizes else None
        has_minimum = bool(endings) and endings[0] == "min" and bits == 4
        endings = endings[has_minimum:]
        float_activations = endings == ["a16"]
        if bits is None or (endings and not float_activations):
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown weight format {name!r}{hint} Known: {', '.join(_NAMES)}")
        if group_size is None:
            group_size = _DEFAULT_WINT4_GROUP if bits == 4 else 0
            has_minimum = bits == 4
        return WeightFormat(bits, group_size, has_minimum, float_activations)

    def __str__(self) -> str:
        """The name, which parse() reads back."""
        if not self.is_integer:
            return "none" if self.bits == 32 else "bfloat16"
        group = f"_g{self.group_size}" if self.group_size else "_channel"
        if self.bits == 8 and not self.group_size:
            group = ""
        return f"wint{self.bits}{group}{'_min' * self.has_minimum}{'_a16' * self.float_activations}"


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight matrix [out, in] as the kernels read it.

    Attributes:
        format: how a weight is stored.
        in_features: inputs.
        out_features: output channels.
        data: [bytes] uint8, numpy or Paddle, laid out as csrc/linear/packed_weight.h says.
    """

    format: WeightFormat
    in_features: int
    out_features: int
    data: Array

    @functools.cached_property
    def layout(self) -> Any:
        """The same description for the kernels; made once."""
        return packed_layout(self.format, self.in_features, self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "layout"}


def packed_layout(weight_format: WeightFormat, in_features: int, out_features: int) -> Any:
    """Returns the kernels' PackedLayout, which knows num_groups and total_bytes."""
    return kernels().PackedLayout(
        weight_format.bits,
        weight_format.group_size,
        weight_format.has_minimum,
        in_features,
        out_features,
    )
