# SPDX-License-Identifier: Apache-2.0
"""What the configuration's keys do to the building of an engine."""

from __future__ import annotations

import pytest

from fdspec.config import config_from_options
from fdspec.engine.build import build_engine
from fdspec.scheduler.topic import InProcessTopic


@pytest.mark.parametrize("folder", [None, "own"])
def test_packed_weights_are_kept_where_the_keys_say(tmp_path, monkeypatch, smollm2_path, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    options: dict[str, object] = {
        "model": str(smollm2_path),
        "max_model_len": 64,
        "num_gpu_blocks_override": 1,
    }
    if folder is not None:
        options["weight_cache_folder"] = str(tmp_path / folder)
    for size_gib, expected in ((0, 0), (1, 1), (1, 1)):
        config = config_from_options({**options, "weight_cache_gib": size_gib}).config
        build_engine(config, InProcessTopic()).close()
        place = tmp_path / "user" / "fdspec" / "weights" if folder is None else tmp_path / folder
        assert len(list(tmp_path.rglob("*.weights"))) == expected
        assert len(list(place.glob("*.weights"))) == expected
