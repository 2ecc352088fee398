# SPDX-License-Identifier: Apache-2.0
"""The example files are valid, and nothing in them is without effect."""

from pathlib import Path

import pytest

from fdspec.config import load_config
from fdspec.config.launch import load_launch

FILES = sorted((Path(__file__).parents[2] / "configs/yaml").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example(path):
    if "\nservers:" in path.read_text(encoding="utf-8"):
        assert load_launch([str(path)]).warnings == ()
    else:
        assert load_config(["--config", str(path)]).warnings == ()
