# SPDX-License-Identifier: Apache-2.0
"""Which backends the tests of ops run on; a required one that is absent fails here.

FDSPEC_REQUIRE_BACKENDS lists them, for example "portable,avx2,avx512,paddle".
"""

from __future__ import annotations

import os
import warnings

import pytest

from fdspec import ops
from tests.ops.support import BACKENDS, HAS_PADDLE, ISAS

REQUIRED = [name for name in os.environ.get("FDSPEC_REQUIRE_BACKENDS", "").split(",") if name]


def reason_for_absence(backend: str) -> str:
    if backend in ISAS:
        with pytest.raises(ValueError, match="needs .* does not have") as caught:
            ops.set_isa(backend)
        return str(caught.value)
    return "Paddle is not installed" if backend == "paddle" else f"unknown; known: {BACKENDS}"


def test_required_backends_are_present() -> None:
    missing = [f"{name}: {reason_for_absence(name)}" for name in REQUIRED if name not in BACKENDS]
    if missing:
        pytest.fail("; ".join(missing))


def test_what_is_left_out_is_said() -> None:
    assert {"reference", "portable"} <= set(BACKENDS)
    for name in (*ISAS, "paddle"):
        if name not in BACKENDS:
            warnings.warn(f"ops are not tested on {reason_for_absence(name)}", stacklevel=1)


@pytest.mark.skipif(not HAS_PADDLE, reason="Paddle is not installed")
def test_every_op_is_a_paddle_custom_op() -> None:
    from fdspec.ops import paddle_ops

    registered = {name.removeprefix("fdspec_") for name in paddle_ops.load()}
    settings = {
        "num_threads",
        "set_num_threads",
        "isa",
        "set_isa",
        "supported_isas",
        "wake_threads",
    }
    # Packing works on arrays in memory; joined and packed weights are made before a program runs.
    packing = {"pack_weight", "unpack_weight", "concat_weights", "packed_layout_fingerprint"}
    # Drafts and the size of a buffer are worked out beside the model, in arrays of the host.
    on_host = {"prediction_draft", "num_token_blocks"}
    functions = {name for name in ops.__all__ if name[0].islower()} - settings - packing - on_host
    assert registered == functions - {"verify_chain", "verify_tree"} | {"verify"}


@pytest.mark.skipif(not HAS_PADDLE, reason="Paddle is not installed")
def test_messages_of_custom_ops_name_the_argument() -> None:
    import paddle

    from fdspec.ops import paddle_ops

    with pytest.raises(ValueError, match=r"weight: expected shape \[4\], got \[5\] float32"):
        paddle_ops.rms_norm(paddle.ones([2, 4]), paddle.ones([5]), 1e-5)
    with pytest.raises(TypeError, match="x: unsupported dtype float64"):
        paddle_ops.rms_norm(paddle.ones([2, 4], "float64"), paddle.ones([4]), 1e-5)
