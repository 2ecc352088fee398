# SPDX-License-Identifier: Apache-2.0
"""Finds the compiled kernels and holds their process-wide settings: threads and instruction set.

Never imports paddle. Each op calls kernels() and gets the module `_core`.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

ISA_VARIABLE = "FDSPEC_ISA"


@functools.cache
def kernels() -> ModuleType:
    """Returns the extension module with the CPU kernels.

    The environment variable FDSPEC_ISA (portable, avx2, avx512 or amx) sets the instruction set
    level to start with.

    Raises:
        ImportError: the module has not been built; the message says how to.
        ValueError: FDSPEC_ISA has an unknown value, or a level that this processor lacks.
    """
    try:
        module = importlib.import_module("fdspec.ops._core")
    except ImportError as error:
        raise ImportError(
            f"fdspec's compiled kernels cannot be loaded ({error}). Build them with "
            "`python -m fdspec.ops.build` (needs g++ and Python's headers). The reference "
            "functions `fdspec.ops.<op>.reference_<op>` work without them."
        ) from error
    if name := os.environ.get(ISA_VARIABLE):
        try:
            module.set_isa(name)
        except ValueError as error:
            raise ValueError(f"environment variable {ISA_VARIABLE}: {error}") from None
    return module


def num_threads() -> int:
    """Returns how many threads an op may use, the calling one included.

    Default: the processors this process may run on.
    """
    return kernels().num_threads()


def set_num_threads(count: int) -> None:
    """Sets how many threads an op may use; the results do not depend on it.

    Raises:
        ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"count: must be at least 1, got {count}")
    kernels().set_num_threads(count)


def wake_threads() -> None:
    """Has the threads ready for an op that will start within some ten microseconds.

    They sleep when there has been nothing to do for a while, and waking one takes about fifty.
    """
    kernels().wake_threads()


def isa() -> str:
    """Returns the instruction set level in use: "portable", "avx2", "avx512" or "amx"."""
    return kernels().isa()


def set_isa(name: str) -> None:
    """Selects the instruction set level; all levels give the same bits.

    Raises:
        ValueError: the name is unknown, or the processor lacks that level.
    """
    kernels().set_isa(name)


def supported_isas() -> list[str]:
    """Returns the levels that this build and this processor support, slowest first."""
    return kernels().supported_isas()
