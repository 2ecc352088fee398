# SPDX-License-Identifier: Apache-2.0
"""Public ops: one function each, with a reference from its definition and compiled CPU kernels.

Arrays are numpy arrays or Paddle CPU tensors; outputs are of the first argument's kind. Every row
of a result has the same bits whatever other rows, threads or instruction set computed it.
Importing this package imports neither paddle nor the compiled module.
"""

from fdspec.ops.dispatch import isa, num_threads, set_isa, set_num_threads, supported_isas
from fdspec.ops.rms_norm import rms_norm

__all__ = [
    "isa",
    "num_threads",
    "rms_norm",
    "set_isa",
    "set_num_threads",
    "supported_isas",
]
