# SPDX-License-Identifier: Apache-2.0
"""Command line > YAML > environment > default, and where each value came from."""

import pickle

import pytest

from fdspec.config import EngineConfig, ModelConfig, config_from_options, load_config
from fdspec.core.errors import ConfigError


@pytest.fixture
def yaml_file(tmp_path):
    def write(text):
        path = tmp_path / "server.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_default_is_overridden_by_yaml_and_yaml_by_the_command_line(yaml_file):
    path = yaml_file("model: from-yaml\nport: 9000\nmax_num_seqs: 3\n")
    loaded = load_config(["--config", path, "--port", "9001"])
    assert loaded.config.model.model == "from-yaml"
    assert loaded.config.server.port == 9001
    assert loaded.config.scheduler.max_num_seqs == 3
    assert loaded.config.cache.block_size == 64
    assert loaded.origins["model"] == f"{path}:1"
    assert loaded.origins["port"] == "command line"
    assert loaded.origins["max_num_seqs"] == f"{path}:3"
    assert loaded.origins["block_size"] == "default"


def test_place_of_the_config_flag_does_not_matter(yaml_file):
    path = yaml_file("model: m\nport: 9000\n")
    assert load_config(["--port", "1", "--config", path]).config.server.port == 1
    assert load_config([f"--config={path}", "--port", "1"]).config.server.port == 1


def test_every_config_flag_may_be_given_once_only(yaml_file):
    path = yaml_file("model: m\n")
    with pytest.raises(ConfigError, match="given twice"):
        load_config(["--config", path, "--config", path])
    with pytest.raises(ConfigError, match="one YAML file"):
        load_config(["--config"])


def test_last_of_a_repeated_flag_counts():
    loaded = load_config(["--model", "m", "--port", "1", "--port", "2"])
    assert loaded.config.server.port == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-num-seqs", "5"],
        ["--max_num_seqs", "5"],
        ["--max-num-seqs=5"],
        ["--max_num_seqs=5"],
    ],
)
def test_dashes_and_underscores_are_the_same_on_the_command_line(arguments):
    config = load_config(["--model", "m", *arguments]).config
    assert config.scheduler.max_num_seqs == 5


def test_dashes_are_understood_in_yaml(yaml_file):
    path = yaml_file("model: m\nmax-num-seqs: 5\n")
    assert load_config(["--config", path]).config.scheduler.max_num_seqs == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--enable-chunked-prefill"], True),
        (["--enable-chunked-prefill", "true"], True),
        (["--no-enable-chunked-prefill"], False),
        (["--enable-chunked-prefill", "false"], False),
        (["--enable-chunked-prefill=0"], False),
        (["--enable_chunked_prefill", "False"], False),
    ],
)
def test_booleans_on_the_command_line(arguments, expected):
    config = load_config(["--model", "m", *arguments]).config
    assert config.scheduler.enable_chunked_prefill is expected


def test_null_on_the_command_line_undoes_the_yaml_file(yaml_file):
    path = yaml_file("model: m\nquantization: wint4\nmax_model_len: 100\n")
    loaded = load_config(["--config", path, "--quantization", "null", "--max-model-len", "null"])
    assert loaded.config.model.quantization is None
    assert loaded.config.model.max_model_len is None


def test_several_served_names_are_a_list_in_yaml_and_words_on_the_command_line(yaml_file):
    path = yaml_file("model: m\nserved_model_name: [one, two]\n")
    assert load_config(["--config", path]).config.model.served_names == ("one", "two")
    loaded = load_config(["--served-model-name", "one", "two", "--model", "m"])
    assert loaded.config.model.served_names == ("one", "two")
    assert load_config(["--model", "m"]).config.model.served_names == ("m",)


def test_empty_yaml_file_is_fine(yaml_file):
    for text in ("", "# only a comment\n", "---\n", "null\n"):
        assert load_config(["--config", yaml_file(text), "--model", "m"]).config.model.model == "m"


def test_model_is_required():
    with pytest.raises(ConfigError, match="model is missing: give --model or the YAML key model"):
        load_config([])


def test_api_keys_come_from_the_environment_unless_given(monkeypatch, yaml_file):
    monkeypatch.setenv("FD_API_KEY", "first, second")
    loaded = load_config(["--model", "m"])
    assert loaded.config.server.api_key == ("first", "second")
    assert loaded.origins["api_key"] == "environment FD_API_KEY"
    path = yaml_file("model: m\napi_key: from-yaml\n")
    assert load_config(["--config", path]).config.server.api_key == ("from-yaml",)
    loaded = load_config(["--config", path, "--api-key", "a", "b"])
    assert loaded.config.server.api_key == ("a", "b")


def test_python_options_follow_the_same_rules():
    loaded = config_from_options(
        {"model": "m", "max_num_seqs": 2, "speculative_config": {"method": "ngram"}}
    )
    assert loaded.config.scheduler.max_num_seqs == 2
    assert loaded.config.speculative is not None
    assert loaded.origins["max_num_seqs"] == "argument"
    with pytest.raises(ConfigError, match="max_num_seq: unknown key; did you mean max_num_seqs?"):
        config_from_options({"model": "m", "max_num_seq": 2})
    with pytest.raises(ConfigError, match="must be an integer of at least 1, got '2'|from 1 to"):
        config_from_options({"model": "m", "max_num_seqs": "2"})


def test_every_option_set_on_the_command_line_has_that_origin():
    loaded = load_config(["--model", "m", "--block-size", "64"])
    assert loaded.origins["block_size"] == "command line"


def test_a_configuration_survives_the_way_to_another_process():
    config = load_config(["--model", "m", "--speculative-config", '{"method":"ngram"}']).config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_configuration_cannot_be_changed():
    config = EngineConfig(ModelConfig("m"))
    with pytest.raises(AttributeError):
        config.model.model = "other"  # type: ignore[misc]
