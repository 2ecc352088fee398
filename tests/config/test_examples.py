# SPDX-License-Identifier: Apache-2.0
"""The example files are valid, and nothing in them is without effect."""

from pathlib import Path

import pytest

from fdspec.config import load_config

FILES = sorted((Path(__file__).parents[2] / "configs/yaml").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example(path):
    assert load_config(["--config", str(path)]).warnings == ()
