# SPDX-License-Identifier: Apache-2.0
"""The worlds of all exactness tests: plain decoding's answers are computed once."""

import pytest

from tests.exactness.worlds import REAL, TINY, real_world, tiny_world
from tests.fakes.exactness import sampling_cases
from tests.models.oracle import make_tiny


@pytest.fixture(scope="session")
def worlds(smollm2_path, tmp_path_factory):
    """Worlds by name, each built when it is first asked for.

    Names are those of `worlds.py`; random models also have their cache's dtype behind theirs, such
    as llama-int8, or it is float32.
    """
    built = {}

    def get(name):
        if name not in built:
            if name in REAL:
                params = sampling_cases(
                    max_tokens=16, stop_ids=(284, 198), stop=(" the", "\n\n"), ids=range(260, 272)
                )
                built[name] = real_world(smollm2_path, params, kv_cache_dtype=REAL[name])
            else:
                model, _, kv_cache_dtype = name.partition("-")
                folder = tmp_path_factory.mktemp(name)
                make_tiny(model, folder)
                params = sampling_cases(
                    max_tokens=40, stop_ids=(7, 31), stop=("abc", "zz"), ids=range(20, 32)
                )
                built[name] = tiny_world(
                    folder,
                    params,
                    quantization=TINY[model],
                    kv_cache_dtype=kv_cache_dtype or "float32",
                )
        return built[name]

    return get
