# SPDX-License-Identifier: Apache-2.0
"""speculative_config: methods, spellings, switching off, overrides, contradictions."""

import json

import pytest

from fdspec.config import SpeculativeConfig, load_config
from fdspec.core.errors import ConfigError


def load(*arguments, yaml=None, tmp_path=None):
    extra = []
    if yaml is not None:
        path = tmp_path / "f.yaml"
        path.write_text("model: m\n" + yaml)
        extra = ["--config", str(path)]
    return load_config([*extra, "--model", "m", *arguments])


def load_json(**keys):
    return load("--speculative-config", json.dumps(keys))


def test_off_by_default():
    assert load().config.speculative is None


def test_the_demo_command():
    config = load_json(method="ngram", num_speculative_tokens=5).config.speculative
    assert config == SpeculativeConfig(method="ngram", num_speculative_tokens=5)
    assert config.is_lossless


@pytest.mark.parametrize(
    "name", ["ngram", "NGRAM", "ngram_match", "prompt_lookup", "prompt-lookup", "[ngram]", " ngram"]
)
def test_spellings_of_ngram(name):
    assert load_json(method=name).config.speculative.method == "ngram"


@pytest.mark.parametrize("name", ["medusa", "MLP-Speculator"])
def test_methods_of_later_versions_are_refused_with_the_available_ones(name):
    with pytest.raises(
        ConfigError, match="is not available in this version; available: ngram, suf"
    ):
        load_json(method=name)


def test_unknown_method_lists_the_methods():
    with pytest.raises(ConfigError, match="must be one of ngram, suffix, .*, got 'ngrm'"):
        load_json(method="ngrm")


def test_naive_drafts_nothing():
    loaded = load_json(method="naive", num_speculative_tokens=3)
    assert loaded.config.speculative.num_speculative_tokens == 0
    assert loaded.origins["speculative_config.num_speculative_tokens"] == "derived"


@pytest.mark.parametrize("value", ["off", "none", "null", "OFF", "false", "{}", ""])
def test_command_line_turns_off_what_the_yaml_file_turned_on(tmp_path, value):
    yaml = "speculative_config:\n  method: ngram\n  num_speculative_tokens: 3\n"
    loaded = load("--speculative-config", value, yaml=yaml, tmp_path=tmp_path)
    assert loaded.config.speculative is None
    assert loaded.origins["speculative_config"] == "command line"


@pytest.mark.parametrize("value", ["off", "null", "none", "no", "''", "{}", "false", "'{}'"])
def test_yaml_spellings_of_off(tmp_path, value):
    loaded = load(yaml=f"speculative_config: {value}\n", tmp_path=tmp_path)
    assert loaded.config.speculative is None


def test_off_also_drops_what_would_be_refused(tmp_path):
    yaml = "speculative_config:\n  method: medusa\n  num_model_steps: 2\n"
    loaded = load("--speculative-config=off", yaml=yaml, tmp_path=tmp_path)
    assert loaded.config.speculative is None
    assert loaded.warnings == ()


def test_command_line_turns_on_what_the_yaml_file_turned_off(tmp_path):
    arguments = ["--speculative-config.method", "ngram"]
    loaded = load(*arguments, yaml="speculative_config: off\n", tmp_path=tmp_path)
    assert loaded.config.speculative.method == "ngram"


def test_dotted_keys_change_single_keys_of_the_yaml_file(tmp_path):
    yaml = "speculative_config:\n  method: ngram\n  num_speculative_tokens: 7\n"
    for flag in (
        "--speculative-config.num_speculative_tokens",
        "--speculative-config.num-speculative-tokens",
        "--speculative_config.num_speculative_tokens",
    ):
        loaded = load(flag, "3", yaml=yaml, tmp_path=tmp_path)
        assert loaded.config.speculative.num_speculative_tokens == 3
        assert loaded.config.speculative.method == "ngram"
        assert loaded.origins["speculative_config.num_speculative_tokens"] == "command line"
        assert loaded.origins["speculative_config.method"].endswith("f.yaml:3")


def test_json_replaces_the_whole_section_and_dotted_keys_win_over_it(tmp_path):
    yaml = "speculative_config: {method: ngram, num_speculative_tokens: 7, max_ngram_size: 9}\n"
    whole = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}']
    loaded = load(*whole, yaml=yaml, tmp_path=tmp_path)
    assert loaded.config.speculative.num_speculative_tokens == 2
    assert loaded.config.speculative.max_ngram_size == 5
    dotted = ["--speculative-config.num_speculative_tokens", "4"]
    for arguments in (whole + dotted, dotted + whole):
        loaded = load(*arguments, yaml=yaml, tmp_path=tmp_path)
        assert loaded.config.speculative.num_speculative_tokens == 4


def test_json_text_inside_yaml(tmp_path):
    yaml = """speculative_config: '{"method": "ngram", "num_speculative_tokens": 2}'\n"""
    assert load(yaml=yaml, tmp_path=tmp_path).config.speculative.num_speculative_tokens == 2


def test_section_without_a_method():
    with pytest.raises(ConfigError, match="method is missing; it must be one of ngram, suffix, "):
        load_json(num_speculative_tokens=3)
    with pytest.raises(ConfigError, match="method is missing"):
        load("--speculative-config.num_speculative_tokens", "3")


def test_vllm_spellings():
    loaded = load_json(model="[ngram]", num_speculative_tokens=4, prompt_lookup_max=6)
    assert loaded.config.speculative == SpeculativeConfig(
        method="ngram", num_speculative_tokens=4, max_ngram_size=6
    )
    assert loaded.warnings == ()
    config = load_json(method="ngram", prompt_lookup_max=4, prompt_lookup_min=3).config.speculative
    assert (config.max_ngram_size, config.min_ngram_size) == (4, 3)
    loaded = load(
        *("--speculative-model", "[ngram]", "--num-speculative-tokens", "5"),
        *("--ngram-prompt-lookup-max", "4", "--ngram-prompt-lookup-min", "1"),
    )
    assert loaded.config.speculative == SpeculativeConfig(
        method="ngram", num_speculative_tokens=5, max_ngram_size=4, min_ngram_size=1
    )


def test_draft_model():
    expected = SpeculativeConfig(method="draft_model", model="some/drafter", quantization="wint8")
    assert expected.num_speculative_tokens == 4
    keys = {"model": "some/drafter", "quantization": "wint8"}
    for loaded in (
        load_json(method="draft_model", **keys),
        load_json(**keys, draft_tensor_parallel_size=1),
        load(
            *("--speculative-model", "some/drafter", "--speculative-model-quantization", "wint8"),
            *("--speculative-draft-tensor-parallel-size", "1"),
        ),
    ):
        assert loaded.config.speculative == expected
        assert loaded.warnings == ()
    (warning,) = load_json(**keys, draft_tensor_parallel_size=2).warnings
    assert "one process" in warning
    assert load("--speculative-model", "null").config.speculative is None


def test_draft_model_belongs_to_its_method():
    with pytest.raises(ConfigError, match="draft_model needs model, the folder"):
        load_json(method="draft_model")
    with pytest.raises(ConfigError, match="ngram runs no model"):
        load_json(method="ngram", model="some/drafter")
    with pytest.raises(ConfigError, match="quantization must be one of none, bfloat16"):
        load_json(model="some/drafter", quantization="int3")


def test_mtp():
    config = load_json(method="MTP", model="some/head").config.speculative
    assert config == SpeculativeConfig(method="mtp", model="some/head")
    assert (config.num_speculative_tokens, config.num_model_steps) == (3, 3)
    config = load_json(method="ernie_mtp", mtp_strategy="with_ngram").config.speculative
    assert (config.method, config.num_speculative_tokens, config.num_model_steps) == ("mtp", 8, 3)
    config = load_json(method="mtp", mtp_strategy="ngram_first", num_speculative_tokens=2)
    assert config.config.speculative.num_model_steps == 2
    with pytest.raises(ConfigError, match=r"num_model_steps \(4\) must not exceed num_specul"):
        load_json(method="mtp", num_model_steps=4)
    with pytest.raises(ConfigError, match="mtp_strategy is for method mtp"):
        load_json(method="ngram", mtp_strategy="with_ngram")
    with pytest.raises(ConfigError, match="must be one of default, with_ngram, ngram_first"):
        load_json(method="mtp", mtp_strategy="ngrams")


def test_fastdeploy_spellings():
    loaded = load_json(
        method="ngram_match", num_speculative_tokens=5, max_ngram_size=4, min_ngram_size=2
    )
    assert loaded.config.speculative.max_ngram_size == 4
    loaded = load_json(method="ngram", verify_strategy="target_sampling")
    assert loaded.config.speculative.verify_strategy == "target_match"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefill_one_step_stop", True),
        ("max_candidate_len", 6),
        ("enforce_eager", True),
        ("num_gpu_block_expand_ratio", 2),
        ("draft_tensor_parallel_size", 2),
        ("speculative_token_tree", "[(0,)]"),
    ],
)
def test_keys_of_other_methods_get_one_warning(key, value):
    loaded = load_json(method="ngram", **{key: value})
    assert len(loaded.warnings) == 1
    assert f"speculative_config.{key}".replace("_config", "-config") in loaded.warnings[0]
    assert "has no effect" in loaded.warnings[0]


def test_only_one_of_the_ngram_sizes_given():
    config = load_json(method="ngram", prompt_lookup_max=1).config.speculative
    assert (config.max_ngram_size, config.min_ngram_size) == (1, 1)
    config = load_json(method="ngram", min_ngram_size=8).config.speculative
    assert (config.max_ngram_size, config.min_ngram_size) == (8, 8)


def test_min_above_max_names_both(tmp_path):
    yaml = "speculative_config:\n  method: ngram\n  prompt_lookup_max: 3\n"
    arguments = ["--speculative-config.prompt_lookup_min", "4"]
    with pytest.raises(ConfigError) as caught:
        load(*arguments, yaml=yaml, tmp_path=tmp_path)
    text = str(caught.value)
    assert "min_ngram_size (4) must not exceed max_ngram_size (3)" in text
    assert "--speculative-config.prompt_lookup_min: command line" in text
    assert "speculative_config.prompt_lookup_max: " in text
    assert "f.yaml:4" in text


def test_two_spellings_of_one_key_in_one_place_must_agree():
    with pytest.raises(ConfigError, match=r"5 contradicts .*prompt_lookup_max \(3\)"):
        load_json(method="ngram", prompt_lookup_max=3, max_ngram_size=5)
    config = load_json(method="ngram", prompt_lookup_max=5, max_ngram_size=5).config.speculative
    assert config.max_ngram_size == 5


@pytest.mark.parametrize("count", [-1, 512, 2.5, True])
def test_number_of_drafts_is_limited(count):
    with pytest.raises(ConfigError, match="num_speculative_tokens: must be an integer from 0 to"):
        load_json(method="ngram", num_speculative_tokens=count)


def test_largest_number_of_drafts():
    config = load_json(method="ngram", num_speculative_tokens=511).config.speculative
    assert config.num_speculative_tokens == 511


def test_ngram_without_drafts_is_a_contradiction():
    with pytest.raises(ConfigError, match="ngram needs num_speculative_tokens of at least 1, got "):
        load_json(method="ngram", num_speculative_tokens=0)


def test_benchmark_mode_rejects_every_draft():
    loaded = load_json(method="ngram", benchmark_mode=True)
    assert loaded.config.speculative.accept_policy == "reject_all"
    assert loaded.origins["speculative_config.accept_policy"] == "derived"
    with pytest.raises(ConfigError, match="leave one of them out"):
        load_json(method="ngram", benchmark_mode=True, accept_policy="accept_all")


def test_lossy_settings_warn_once():
    loaded = load_json(method="ngram", verify_strategy="topp")
    assert len(loaded.warnings) == 1
    assert "lossy" in loaded.warnings[0]
    assert not loaded.config.speculative.is_lossless
    loaded = load_json(method="ngram", accept_policy="accept_all")
    assert len(loaded.warnings) == 1
    assert "debugging" in loaded.warnings[0]


def test_other_keys():
    loaded = load_json(method="ngram", adaptive_draft_length=False, disable_by_batch_size=4)
    assert loaded.config.speculative.adaptive_draft_length is False
    assert loaded.config.speculative.disable_by_batch_size == 4
    with pytest.raises(ConfigError, match="tokens are not forced after the thinking part"):
        load_json(method="ngram", enf_gen_phase_tag=True)


def test_vllm_model_without_quotes_in_yaml(tmp_path):
    yaml = "speculative_config: {model: [ngram], num_speculative_tokens: 4}\n"
    assert load(yaml=yaml, tmp_path=tmp_path).config.speculative.method == "ngram"
