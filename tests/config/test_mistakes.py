# SPDX-License-Identifier: Apache-2.0
"""What a user can get wrong, and what the message says about it."""

import re

import pytest

from fdspec.config import CacheConfig, ModelConfig, SchedulerConfig, load_config
from fdspec.core.errors import ConfigError
from fdspec.ops import WeightFormat


def message_for(tmp_path, text, *arguments):
    """The error for a YAML text; the file's name is shortened to `f`."""
    path = tmp_path / "f"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(["--config", str(path), *arguments])
    return str(caught.value).replace(str(path), "f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: m\nmax_num_seq: 3\n", "f:2: max_num_seq: unknown key; did you mean max_num_seqs?"),
        ("model: m\nxyzzy: 3\n", "f:2: xyzzy: unknown key; --help lists the keys"),
        (
            "model: m\nverify_strategy: greedy\n",
            "f:2: verify_strategy: unknown key; did you mean speculative_config.verify_strategy?",
        ),
        ("model: m\ngraph_optimization_config: off\n", "must be a map, got False; example:"),
        (
            "model: m\nenforce_eager: true\ngraph_optimization_config:\n  use_step_program: true\n",
            "true contradicts graph_optimization_config.use_step_program (true)",
        ),
        ("model: m\ntensor_paralel_size: 1\n", "did you mean tensor_parallel_size?"),
        ("model: m\nspeculative_confg: off\n", "did you mean speculative_config?"),
        (
            "model: m\nspeculative_config:\n  method: ngram\n  num_speculative_token: 3\n",
            "f:4: speculative_config.num_speculative_token: unknown key; did you mean "
            "num_speculative_tokens?",
        ),
        (
            "model: m\nspeculative_config: {method: ngram, qqqq: 3}\n",
            "f:2: speculative_config.qqqq: unknown key; known keys: accept_policy,",
        ),
        (
            "model: m\nspeculative_config: {method: ngram, num_spec: 3}\n",
            "f:2: speculative_config.num_spec: unknown key; did you mean num_speculative_tokens?",
        ),
        ("model: m\nseed: -1\n", "an integer from 0 to 9223372036854775807, or null, got -1"),
        ("model: m\nquantization: wint8_min\n", "and for 4 bits _min for a minimum"),
        ("model: m\nmax_num_seqs: many\n", "f:2: max_num_seqs: must be an integer from 1 to 4096"),
        ("model: m\nmax_num_seqs: many\n", "got 'many' (a text)"),
        ("model: m\nmax_num_seqs: 0\n", "from 1 to 4096, got 0"),
        (
            "model: m\nmax_num_batched_tokens: 2\nmax_num_seqs: 8\n",
            "max_num_batched_tokens (2) must be at least max_num_seqs (8)",
        ),
        ("model: m\nmax_num_seqs: 3.5\n", "from 1 to 4096, got 3.5"),
        ("model: m\nmax_num_seqs: true\n", "from 1 to 4096, got True"),
        ("model: m\nmax_num_seqs:\n", "from 1 to 4096, got None"),
        ("model: m\nmax_num_seqs: [1]\n", "from 1 to 4096, got [1]"),
        ("model: m\nmax_num_seqs: '8'\n", "got '8' (a text)"),
        ("model: m\nmax_model_len: x\n", "an integer of at least 1, or null, got 'x'"),
        ("model: m\nenable_chunked_prefill: 1\n", "must be true or false, got 1"),
        ("model: m\ngpu_memory_utilization: 90\n", "must be a number from 0.01 to 1, got 90"),
        ("model: m\ngpu_memory_utilization: .nan\n", "must be a number from 0.01 to 1, got nan"),
        (
            "model: m\nkv_cache_dtype: int3\n",
            "one of bfloat16, float32, int8, got 'int3'; did you mean int8?",
        ),
        ("model: m\nlogprobs_mode: raw_logits\n", "one of raw_logprobs, got 'raw_logits'"),
        ("model: 5\n", "f:1: model: must be a text, got 5"),
        ("model: ''\n", "model must not be empty (model: f:1)"),
        ("model: m\nquantization: wint3\n", "quantization must be one of none, bfloat16, wint8"),
        ("model: m\nquantization: {a: b}\n", "f:2: quantization.a: unknown key"),
        ("model: m\nport: 99999\n", "f:2: port: must be an integer from 0 to 65535, got 99999"),
        ("model: m\nspeculative_config: 5\n", "f:2: speculative_config: must be a map or off"),
        ("model: m\ngraph_optimization_config: 5\n", "must be a map, got 5"),
    ],
)
def test_wrong_key_or_value_names_place_key_value_and_what_is_allowed(tmp_path, text, expected):
    assert expected in message_for(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- model\n- port\n", "f:1: a map is needed"),
        ("just words\n", "f:1: a map is needed"),
        ("model: m\nport: 1\nport: 2\n", "f:3: port is already set on line 2"),
        ("model: m\nmax_num_seqs: 1\nmax-num-seqs: 2\n", "max-num-seqs is already set on line 2"),
        ("model: m\nspeculative_config: {method: ngram, method: naive}\n", "method is already set"),
        ("model: m\nspeculative_config:\n\tmethod: ngram\n", "f:3: a tab; YAML is indented with"),
        ("model: m\n---\nmodel: n\n", "f:2: a second document starts here"),
        ("model: [m\n", "f:2: not valid YAML"),
        ("model: m: n\n", "f:1: not valid YAML"),
        ("? [a, b]\n: 1\n", "f:1: a key must be a plain word"),
        ("model: !!python/object:os.system x\n", "f:1: not valid YAML"),
        ("model: m\na: &x\n  b: *x\n", "a map contains itself"),
        (b"model: \xff\xfe\n", "f: not UTF-8 text (byte 7)"),
    ],
)
def test_file_that_is_no_plain_map(tmp_path, text, expected):
    assert expected in message_for(tmp_path, text)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file \(from /"):
        load_config(["--config", "nowhere.yaml"])
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(["--config", str(tmp_path)])


def test_yaml_merge_keys_and_anchors_work(tmp_path):
    path = tmp_path / "f"
    path.write_text(
        "model: m\nspeculative_config: &base\n  method: ngram\n  num_speculative_tokens: 3\n"
        "graph_optimization_config:\n  use_step_program: false\n"
    )
    speculative = load_config(["--config", str(path)]).config.speculative
    assert speculative is not None and speculative.num_speculative_tokens == 3


def test_yaml_exponents_without_a_dot_are_numbers(tmp_path):
    path = tmp_path / "f"
    path.write_text("model: m\ngpu_memory_utilization: 5e-1\n")
    assert load_config(["--config", str(path)]).config.cache.gpu_memory_utilization == 0.5


def test_file_may_start_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfmodel: m\n")
    assert load_config(["--config", str(path)]).config.model.model == "m"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--max-num-seq", "3"], "--max-num-seq: unknown key; did you mean --max-num-seqs?"),
        (
            ["--use-step-program", "false"],
            "--use-step-program: unknown key; did you mean "
            "--graph-optimization-config.use_step_program?",
        ),
        (
            ["--graph-optimization-config", "off"],
            "--graph-optimization-config: must be a map, got 'off'; example: "
            "--graph-optimization-config '{\"use_step_program\": false}'",
        ),
        (
            ["--graph-optimization-config", "{"],
            "--graph-optimization-config: not valid JSON",
        ),
        (
            ["--enforce-eager", "--graph-optimization-config.use_step_program", "true"],
            "use_step_program: true contradicts --enforce-eager (true), which decides",
        ),
        (
            ["--speculative-config.num-speculative-token", "3"],
            "did you mean --speculative-config.num_speculative_tokens?",
        ),
        (["--port", "x"], "--port: must be an integer from 0 to 65535, got 'x'"),
        (["--port", ""], "--port: must be an integer from 0 to 65535, got ''"),
        (["--port"], "--port: needs a value: an integer from 0 to 65535"),
        (["--port", "1", "2"], "got ['1', '2']; it takes one value"),
        (["--tokenizer"], "--tokenizer: needs a value: a text, or null"),
        (["--no-port"], "--no-port: must be an integer from 0 to 65535, got False"),
        (["--metrics-prefix", "vllm"], "must be one of fdspec, fastdeploy, got 'vllm'"),
        (["--help", "x"], "--help takes no value"),
    ],
)
def test_command_line_mistakes(arguments, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load_config(["--model", "m", *arguments])


def test_value_without_an_option():
    with pytest.raises(ConfigError, match="'smollm' does not belong to an option; a model is"):
        load_config(["smollm"])


def test_all_problems_are_told_at_once(tmp_path):
    text = message_for(
        tmp_path, "model: m\nport: x\nmax_num_seqs: 0\nkv_cache_dtype: int3\n", "--block-size", "0"
    )
    assert len(text.splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("{method: ngram}", "line 1, column 2, after '{'"),
        ('{"method":"ngram"', "a comma is missing at line 1, column 18"),
        ('{"method":"ngram",}', "line 1, column 1[89]"),
    ],
)
def test_broken_json_shows_the_position_and_an_example(text, position):
    with pytest.raises(ConfigError) as caught:
        load_config(["--model", "m", "--speculative-config", text])
    assert re.search(position, str(caught.value))
    assert "--speculative-config: not valid JSON" in str(caught.value)
    assert """--speculative-config '{"method": "ngram",""" in str(caught.value)


def test_json_with_a_key_twice():
    text = '{"method":"ngram","method":"naive"}'
    with pytest.raises(ConfigError, match="the key 'method' occurs twice"):
        load_config(["--model", "m", "--speculative-config", text])


def test_text_that_is_no_json_map():
    with pytest.raises(ConfigError, match="must be a map or off, got 'ngram'; example: --spec"):
        load_config(["--model", "m", "--speculative-config", "ngram"])


def test_numbers_in_json_must_be_numbers():
    text = '{"method":"ngram","num_speculative_tokens":"5"}'
    with pytest.raises(ConfigError, match="must be an integer from 0 to 511, got '5'"):
        load_config(["--model", "m", "--speculative-config", text])


def test_budget_too_small_without_chunked_prefill_names_both_places(tmp_path):
    text = message_for(
        tmp_path,
        "model: m\nmax_num_batched_tokens: 100\nenable_chunked_prefill: false\n",
        "--max-model-len",
        "200",
    )
    assert "max_num_batched_tokens (100) must be at least max_model_len (200)" in text
    assert "max_num_batched_tokens: f:2; --max-model-len: command line" in text


def test_token_budget():
    assert SchedulerConfig().token_budget(2048) == 512
    assert SchedulerConfig(enable_chunked_prefill=False).token_budget(2048) == 2048
    assert SchedulerConfig(max_num_batched_tokens=64).token_budget(2048) == 64


@pytest.mark.parametrize(
    "quantization",
    ["none", "bfloat16", "wint8", "wint4", "wint8_g32", "wint4_g64", "wint4_g128", "wint4_a16"],
)
def test_weight_formats(quantization):
    assert ModelConfig("m", quantization=quantization).quantization == quantization


def test_dataclasses_check_themselves():
    with pytest.raises(ConfigError, match="block_size must be an integer from 1 to 1024, got 0"):
        CacheConfig(block_size=0)
    with pytest.raises(ConfigError, match="kv_cache_dtype must be one of bfloat16, float32"):
        CacheConfig(kv_cache_dtype="int3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["wint4_g32_min", "wint4_channel_min_a16", "wint8_channel", "wint4_min", "wint8_g64"]
)
def test_every_name_of_a_weight_format_is_a_quantization(name):
    WeightFormat.parse(name)
    assert load_config(["--model", "m", "--quantization", name]).config.model.quantization == name
