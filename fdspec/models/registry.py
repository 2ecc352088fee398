# SPDX-License-Identifier: Apache-2.0
"""The list of model families. Owns the lookup by architecture; to add a family, add it here."""

from __future__ import annotations

from difflib import get_close_matches

from fdspec.core.errors import CheckpointError
from fdspec.models.ernie import ERNIE4_5, ERNIE4_5_MOE
from fdspec.models.family import Family
from fdspec.models.llama import LLAMA
from fdspec.models.qwen2 import QWEN2
from fdspec.models.qwen3 import QWEN3
from fdspec.models.qwen3_moe import QWEN3_MOE

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN2, QWEN3, QWEN3_MOE, ERNIE4_5, ERNIE4_5_MOE)


def family_of_architecture(architecture: str, source: str) -> Family:
    """The family of a class name in config.json.

    Raises:
        CheckpointError: not known; lists what is, and the nearest name.
    """
    known = {name: family for family in FAMILIES for name in family.architectures}
    return _find(known, architecture, source)


def family_of_gguf(architecture: str, source: str) -> Family:
    """The family of a GGUF file's `general.architecture`.

    Raises:
        CheckpointError: not known; lists what is, and the nearest name.
    """
    known = {
        family.gguf_architecture: family
        for family in FAMILIES
        if family.gguf_architecture is not None
    }
    return _find(known, architecture, source)


def _find(known: dict[str, Family], architecture: str, source: str) -> Family:
    if architecture in known:
        return known[architecture]
    near = get_close_matches(architecture, known, n=1, cutoff=0.5)
    hint = f" (nearest: {near[0]})" if near else ""
    raise CheckpointError(
        f"{source}: architecture {architecture!r} is not supported{hint}; "
        f"supported: {', '.join(sorted(known))}"
    )
