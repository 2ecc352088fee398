# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md says what the code does."""

from scripts.config_reference import PATH, reference


def test_the_page_is_up_to_date():
    assert PATH.read_text(encoding="utf-8") == reference(), "run python -m scripts.config_reference"
