# SPDX-License-Identifier: Apache-2.0
"""Parameters of the proposers: suffix, memory, hybrid, MindIE's plugin_params and config.json."""

import json

import pytest
import yaml

from fdspec.config import SpeculativeConfig, config_from_options, load_config
from fdspec.config.render import render_config
from fdspec.core.errors import ConfigError


def load(**keys):
    return config_from_options({"model": "m", "speculative_config": keys})


def load_file(tmp_path, text, name="f.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_config(["--config", str(path)])


@pytest.mark.parametrize(
    ("method", "count"), [("ngram", 5), ("suffix", 16), ("memory", 16), ("prediction", 16)]
)
def test_each_method_has_its_own_draft_length(method, count):
    loaded = load(method=method)
    assert loaded.config.speculative.num_speculative_tokens == count
    assert loaded.config.speculative.draft_rows == count
    assert load(method=method, num_speculative_tokens=3).config.speculative.draft_rows == 3


def test_suffix_has_the_names_of_its_users():
    config = load(
        method="suffix_decoding",
        suffix_decoding_max_tree_depth=64,
        suffix_decoding_max_cached_requests=-1,
        suffix_decoding_max_spec_factor=2,
        suffix_decoding_min_token_prob=0.2,
    ).config.speculative
    assert config.method == "suffix"
    assert config.suffix_decoding_max_spec_factor == 2.0
    with pytest.raises(
        ConfigError, match=r"max_cached_requests: must be an integer of at least -1"
    ):
        load(method="suffix", suffix_decoding_max_cached_requests=-2)
    with pytest.raises(ConfigError, match=r"min_token_prob: must be a number from 0 to 1, got 1.5"):
        load(method="suffix", suffix_decoding_min_token_prob=1.5)


def test_hybrid_reads_each_member_like_a_section_of_its_own():
    loaded = load(
        method="hybrid",
        proposers=[{"method": "suffix"}, {"method": "ngram_match", "prompt-lookup-max": 4}],
    )
    config = loaded.config.speculative
    assert config.num_speculative_tokens == 16
    assert config.proposers == (
        SpeculativeConfig(method="suffix"),
        SpeculativeConfig(method="ngram", max_ngram_size=4),
    )
    assert loaded.warnings == ()


def test_hybrid_from_yaml_json_and_flags_is_the_same(tmp_path):
    members = [{"method": "memory"}, {"method": "ngram", "num_speculative_tokens": 3}]
    expected = load(method="hybrid", proposers=members).config.speculative
    section = {"speculative_config": {"method": "hybrid", "proposers": members}}
    text = yaml.safe_dump({"model": "m", **section})
    assert load_file(tmp_path, text).config.speculative == expected
    flags = ["--model", "m", "--speculative-config.method", "hybrid"]
    loaded = load_config([*flags, "--speculative-config.proposers", json.dumps(members)])
    assert loaded.config.speculative == expected


def test_a_printed_hybrid_loads_to_the_same_one(tmp_path):
    loaded = load(
        method="hybrid",
        proposers=[{"method": "suffix", "draft_cache_mib": 7}, {"method": "prediction"}],
    )
    text = render_config(loaded.config, loaded.origins)
    assert load_file(tmp_path, text).config == loaded.config


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "hybrid needs proposers"),
        ([{"method": "naive"}], "hybrid needs proposers"),
        ([{"method": "ngram"}, {"method": "ngram"}], "hybrid needs proposers"),
        ([{"method": "suffixx"}], r"proposers\[0\].method: must be one of ngram, suffix"),
        ([{"method": "suffix"}, {"metho": "ngram"}], r"proposers\[1\].metho: unknown key; did you"),
        ([{"max_ngram_size": 3}], r"proposers\[0\]: .*method is missing"),
        (
            [{"method": "ngram", "max_ngram_size": 99}],
            r"proposers\[0\].max_ngram_size: must be an integer from 1 to 64",
        ),
        (
            [{"method": "ngram", "min_ngram_size": 4, "max_ngram_size": 3}],
            r"proposers\[0\]: min_ngram_size \(4\) must not exceed max_ngram_size",
        ),
        ([{"method": "ngram", "verify_strategy": "greedy"}], "belongs to the hybrid as a whole"),
        (["ngram"], "proposers: must be a list of maps"),
        ({"method": "ngram"}, "proposers: must be a list of maps"),
    ],
)
def test_wrong_members_are_named(members, message):
    with pytest.raises(ConfigError, match=message):
        load(method="hybrid", proposers=members)


def test_members_without_hybrid():
    with pytest.raises(ConfigError, match="proposers need method: hybrid, got suffix"):
        load(method="suffix", proposers=[{"method": "ngram"}])


def test_plugin_params_are_a_speculative_config(tmp_path):
    params = {"plugin_type": "memory_decoding", "decoding_length": 12, "dynamic_algo": False}
    expected = SpeculativeConfig(
        method="memory", num_speculative_tokens=12, adaptive_draft_length=False
    )
    for value in (params, json.dumps(params)):
        text = yaml.safe_dump({"model": "m", "plugin_params": value})
        loaded = load_file(tmp_path, text)
        assert loaded.config.speculative == expected
        assert loaded.warnings == ()
    assert load_file(tmp_path, "model: m\nplugin_params: ''\n").config.speculative is None


def test_lookahead_has_the_names_of_its_users():
    loaded = load(plugin_type="la", level=5, window=4, guess_set_size=3)
    config = loaded.config.speculative
    assert (config.method, config.level, config.window, config.guess_set_size) == (
        *("lookahead", 5, 4),
        3,
    )
    # (N - 1) * (W + G) rows, as MindIE counts them.
    assert config.num_speculative_tokens == config.draft_rows == 28
    assert loaded.warnings == ()
    assert load(method="lookahead").config.speculative.draft_rows == 30
    assert load(method="la", num_speculative_tokens=9).config.speculative.draft_rows == 9
    largest = load(method="lookahead", level=16, window=16, guess_set_size=16)
    assert largest.config.speculative.draft_rows == 480


@pytest.mark.parametrize(
    ("key", "value", "least"), [("level", 2, 3), ("window", 0, 1), ("guess_set_size", 17, 1)]
)
def test_sizes_of_lookahead_have_limits(key, value, least):
    message = f"{key}: must be an integer from {least} to 16, got {value}"
    with pytest.raises(ConfigError, match=message):
        load(method="lookahead", **{key: value})


def test_lookahead_beside_others():
    config = load(
        method="hybrid", proposers=[{"method": "suffix"}, {"method": "la", "window": 2}]
    ).config.speculative
    assert config.proposers[1] == SpeculativeConfig(method="lookahead", window=2)
    assert config.num_speculative_tokens == 21


def test_speculation_gamma_must_hold_a_draft(tmp_path):
    yaml_text = "model: m\nplugin_params: {plugin_type: memory_decoding}\nspeculationGamma: "
    assert load_file(tmp_path, yaml_text + "16").config.speculative.draft_rows == 16
    with pytest.raises(ConfigError) as caught:
        load_file(tmp_path, yaml_text + "15")
    assert "(15) must be at least num_speculative_tokens (16)" in str(caught.value)
    assert "speculationGamma: " in str(caught.value)
    assert load_file(tmp_path, "model: m\nspeculationGamma: 0\n").config.speculative is None


def test_speculation_gamma_must_hold_a_step_of_lookahead(tmp_path):
    yaml_text = (
        "model: m\nplugin_params: {plugin_type: la, level: 3, window: 4}\nspeculationGamma: "
    )
    assert load_file(tmp_path, yaml_text + "18").config.speculative.draft_rows == 18
    with pytest.raises(ConfigError) as caught:
        load_file(tmp_path, yaml_text + "17")
    assert "(17) must be at least num_speculative_tokens (18)" in str(caught.value)
    assert "(level - 1) * (window + guess_set_size)" in str(caught.value)


MINDIE = """{
\t"Version": "1.0.0",
\t"LogConfig": {"logLevel": "Info"},
\t"ServerConfig": {"ipAddress": "127.0.0.1", "port": 1025, "httpsEnabled": false, "tlsCaPath": ""},
\t"BackendConfig": {
\t\t"backendName": "mindieservice_llm_engine", "npuDeviceIds": [[0]], "truncation": false,
\t\t"ModelDeployConfig": {
\t\t\t"maxSeqLen": 2560, "maxInputTokenLen": 2048,
\t\t\t"ModelConfig": [{
\t\t\t\t"modelName": "llama", "modelWeightPath": "/data/llama", "worldSize": 1, "npuMemSize": -1,
\t\t\t\t"plugin_params": "{\\"plugin_type\\":\\"memory_decoding\\",\\"decoding_length\\":12}"
\t\t\t}]
\t\t},
\t\t"ScheduleConfig": {"maxBatchSize": 20, "maxPrefillTokens": 4096, "speculationGamma": 16}
\t}
}
"""


def test_a_mindie_file(tmp_path):
    loaded = load_file(tmp_path, MINDIE, "config.json")
    config = loaded.config
    assert (config.model.model, config.model.served_names) == ("/data/llama", ("llama",))
    assert (config.model.max_model_len, config.server.port) == (2560, 1025)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (20, 4096)
    assert (config.speculative.method, config.speculative.num_speculative_tokens) == ("memory", 12)
    assert loaded.origins["max_num_seqs"].endswith("config.json:14")
    warned = {line.split(": ")[1] for line in loaded.warnings}
    assert warned == {
        "Version",
        "LogConfig",
        "BackendConfig.backendName",
        "BackendConfig.npuDeviceIds",
        "BackendConfig.ModelDeployConfig.maxInputTokenLen",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "1025,",
            "1025\uff0c",
            "config.json: not valid JSON: the full-width '\uff0c' at line 4, col",
        ),
        ("1025,", "1025", "config.json: not valid JSON: a comma is missing at line 4, column 58"),
        ('"port":', '"port"\uff1a', "the full-width '\uff1a' at line 4"),
        ('"maxBatchSize"', '"maxBatchSizes"', "config.json:14: .*did you mean maxBatchSize?"),
        (
            "[{\n",
            "[{}, {\n",
            "config.json:9: .*exactly one map, because one model is served; got 2",
        ),
        ('"ServerConfig": {', '"ServerConfig": 3, "x": {', "ServerConfig: must be a map, got 3"),
        ("memory_decoding", "medusa", "plugin_params.plugin_type: medusa is not available"),
        (":12", ":17", r"speculationGamma: .*config.json:14; .*decoding_length: .*config.json:9"),
    ],
)
def test_mistakes_in_a_mindie_file(tmp_path, old, new, message):
    assert old in MINDIE
    with pytest.raises(ConfigError, match=message):
        load_file(tmp_path, MINDIE.replace(old, new), "config.json")
