# SPDX-License-Identifier: Apache-2.0
"""Whatever a user writes, the answer is a configuration or a ConfigError, never another error."""

import json

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fdspec.config import LoadedConfig, load_config
from fdspec.config.foreign import foreign_keys
from fdspec.config.render import render_config
from fdspec.config.schema import sections
from fdspec.core.errors import ConfigError

OPTIONS = [option for section in sections() for option in section.options]
KEYS = st.sampled_from(
    [option.path[-1] for option in OPTIONS]
    + [section.key for section in sections() if section.key]
    + sorted({name.rpartition(".")[2] for name in foreign_keys()})
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5000),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["off", "ngram", "wint4", "bfloat16", "null", "{", "[ngram]"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
RELAXED = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def loads(argv) -> LoadedConfig | None:
    try:
        return load_config(argv)
    except ConfigError as error:
        assert str(error).strip()
        return None


@RELAXED
@given(st.dictionaries(KEYS, VALUES, max_size=5))
@example({"enforce_eager": None})
def test_yaml_files_of_known_keys(tmp_path, content):
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump({"model": "m", **content}, allow_unicode=True), "utf-8")
    loaded = loads(["--config", str(path)])
    if loaded is not None:
        printed = tmp_path / "printed.yaml"
        printed.write_text(render_config(loaded.config, loaded.origins), "utf-8")
        again = load_config(["--config", str(printed)])
        assert set(again.warnings) <= set(loaded.warnings)
        if not loaded.config.server.api_key:
            assert again.config == loaded.config


@RELAXED
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8")))
@example(b"\x00")
@example(b"a: *b")
@example(b"!!binary x: y")
@example(b"<<: 1")
@example(b"<<: {model: m}")
@example(b"2020-01-01: 2020-99-99")
@example(b"port: 0x")
@example(b"port: !!int abc")
def test_files_of_any_bytes(tmp_path, content):
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    loads(["--config", str(path), "--model", "m"])


@RELAXED
@given(
    st.lists(
        st.one_of(
            st.sampled_from([option.flag for option in OPTIONS] + ["--speculative-config"]),
            st.sampled_from(["-", "--", "---", "--=", "--.", "-x", "--no-", "--config="]),
            SCALARS.map(str),
            st.dictionaries(KEYS, SCALARS, max_size=3).map(json.dumps),
        ),
        max_size=6,
    )
)
def test_command_lines(arguments):
    loads(["--model", "m", *arguments])


def test_merge_keys_bring_their_values(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(
        "model: m\nlimit_mm_per_prompt: &base {method: ngram, num_speculative_tokens: 3}\n"
        "speculative_config:\n  <<: *base\n  num_speculative_tokens: 4\n"
    )
    config = load_config(["--config", str(path)]).config.speculative
    assert config is not None
    assert config.num_speculative_tokens == 4


@pytest.mark.parametrize("depth", [10, 100_000])
def test_deep_nesting(tmp_path, depth):
    path = tmp_path / "f.yaml"
    path.write_text("model: m\nips: " + "[" * depth + "]" * depth)
    assert (loads(["--config", str(path)]) is None) == (depth > 10)
    nested = '{"a":' * depth + "1" + "}" * depth
    assert loads(["--model", "m", "--speculative-config", nested]) is None
