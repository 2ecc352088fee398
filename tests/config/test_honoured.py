# SPDX-License-Identifier: Apache-2.0
"""A key that nobody reads would be a lie."""

import ast
from pathlib import Path

import pytest

import fdspec
from fdspec.config.schema import sections

PACKAGE = Path(fdspec.__file__).parent

# Read through a property or method of the dataclass that holds them.
THROUGH = {
    "served_model_name": "served_names",
    "max_num_batched_tokens": "token_budget",
    "enable_chunked_prefill": "token_budget",
    "long_prefill_token_threshold": "long_prompt_tokens",
    "benchmark_mode": "accept_policy",
    "scheduler_name": "is_shared",
    **dict.fromkeys(
        (
            *("scheduler_url", "scheduler_host", "scheduler_port", "scheduler_db"),
            *("scheduler_password", "scheduler_curve_keys"),
        ),
        "address",
    ),
    "max_draft_rows": "draft_rows",
}
# Only one value is allowed, and it says what is done anyway.
WITHOUT_CHOICE = {"logprobs_mode"}
# Read by plug-ins.
ELSEWHERE = {"plugin_options"}


@pytest.fixture(scope="module")
def attributes_read():
    """Names of attributes that are read anywhere outside the configuration itself."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        if "config" not in path.relative_to(PACKAGE).parts[:1]:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names


def test_every_key_is_read_by_somebody(attributes_read):
    unread = [
        option.name
        for section in sections()
        for option in section.options
        if option.path[-1] not in WITHOUT_CHOICE | ELSEWHERE
        and THROUGH.get(option.path[-1], option.path[-1]) not in attributes_read
    ]
    assert unread == []


def test_keys_without_a_choice_have_one_value():
    options = {option.path[-1]: option for section in sections() for option in section.options}
    for name in WITHOUT_CHOICE:
        assert len(options[name].choices) == 1
