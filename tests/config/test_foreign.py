# SPDX-License-Identifier: Apache-2.0
"""Keys of FastDeploy, vLLM and MindIE: honoured, mapped, named in one line, or refused."""

import pytest

from fdspec.config import load_config
from fdspec.config.foreign import foreign_keys
from fdspec.config.schema import sections
from fdspec.core.errors import ConfigError

# Every option of FastDeploy's API server and engine, by the name it has in a YAML file.
FASTDEPLOY_KEYS = """
host port workers metrics_port controller_port max_waiting_time max_concurrency enable_mm_output
timeout_graceful_shutdown timeout api_key
model served_model_name revision model_config_name tokenizer tokenizer_base_url max_model_len
block_size task runner convert override_pooler_config use_warmup limit_mm_per_prompt
mm_processor_kwargs max_encoder_cache max_processor_cache enable_mm reasoning_parser chat_template
tool_call_parser tool_parser_plugin speculative_config dynamic_load_weight load_strategy
rsync_config engine_worker_queue_port quantization graph_optimization_config plas_attention_config
guided_decoding_backend guided_decoding_disable_any_whitespace enable_logprob max_logprobs
logprobs_mode enable_keep_sampling_mask enable_entropy seed enable_early_stop early_stop_config
lm_head_fp32 logits_processors model_impl
tensor_parallel_size data_parallel_size local_data_parallel_id enable_expert_parallel
disable_custom_all_reduce enable_flashinfer_allreduce_fusion use_internode_ll_two_stage
disable_sequence_parallel_moe max_num_seqs num_gpu_blocks_override max_num_batched_tokens
gpu_memory_utilization enable_eplb eplb_config routing_replay_config enable_chunked_moe
chunked_moe_size shutdown_comm_group_if_worker_idle load_choices kv_cache_ratio swap_space
prealloc_dec_block_slot_num_threshold cache_queue_port static_decode_blocks
kvcache_storage_backend write_policy ips enable_prefix_caching enable_output_caching
enable_chunked_prefill max_num_partial_prefills max_long_partial_prefills
long_prefill_token_threshold disable_chunked_mm_input splitwise_role cache_transfer_protocol
pd_comm_port rdma_comm_ports innode_prefill_ports router scheduler_name scheduler_max_size
scheduler_ttl scheduler_host scheduler_port scheduler_db scheduler_password scheduler_topic
scheduler_min_load_score scheduler_load_shards_num scheduler_sync_period scheduler_expire_period
scheduler_release_load_expire_period scheduler_reader_parallel scheduler_writer_parallel
scheduler_reader_batch_size scheduler_writer_batch_size enable_overlap_schedule
"""


def load(tmp_path, yaml):
    path = tmp_path / "f.yaml"
    path.write_text("model: m\n" + yaml)
    return load_config(["--config", str(path)])


def own_names():
    names = {option.name for section in sections() for option in section.options}
    return names | {section.key for section in sections() if section.key}


@pytest.mark.parametrize("key", FASTDEPLOY_KEYS.split())
def test_every_fastdeploy_key_is_known(key):
    assert key in own_names() | foreign_keys().keys()


def test_no_key_is_both_own_and_foreign():
    both = own_names() & foreign_keys().keys()
    # Some of whose values mean another key.
    assert all(foreign_keys()[name].otherwise == name for name in both)


def test_every_foreign_key_is_mapped_to_an_own_one_or_says_why_not():
    for name, key in foreign_keys().items():
        if key.to:
            assert key.to in own_names(), name
        else:
            assert key.reason, name
        assert not (key.to and key.honoured), name


@pytest.mark.parametrize(
    "yaml",
    [
        "tensor_parallel_size: 1",
        "splitwise_role: mixed",
        "scheduler_name: local",
        "enable_output_caching: true",
        "cpuMemSize: 4",
        "workers: 1",
        "enable_logprob: true",
        "model_impl: auto",
        "reasoning_parser: null",
        "task: null",
        "enforce_eager: null",
        "speculative_model: null",
        "max_processor_cache: -1",
        "trust_remote_code: false",
        "device: cpu",
    ],
)
def test_values_that_say_what_is_done_anyway_are_accepted_in_silence(tmp_path, yaml):
    assert load(tmp_path, yaml).warnings == ()


@pytest.mark.parametrize(
    "yaml",
    [
        "data_parallel_size: 4",
        "data_parallel_size: true",
        "enable_output_caching: false",
        "preemption_mode: swap",
        "kv_cache_ratio: 0.75",
        "metrics_port: 8001",
        "engine_worker_queue_port: 6677",
        "reasoning_parser: ernie-x1",
        "tool_call_parser: ernie-x1",
        "cache_transfer_protocol: rdma,ipc",
        "scheduler_sync_period: 5",
        "workers: 4",
        "dtype: float16",
        "trust_remote_code: true",
        "limit_mm_per_prompt: {image: 1, video: {a: b}}",
        "rdma_comm_ports: [7675, 7676]",
        "graph_optimization_config: {graph_opt_level: 1}",
    ],
)
def test_other_values_get_one_line_that_names_place_and_reason(tmp_path, yaml):
    warnings = load(tmp_path, yaml).warnings
    assert len(warnings) == 1
    assert "f.yaml:2: " in warnings[0]
    assert yaml.partition(":")[0] in warnings[0]
    assert ": has no effect: " in warnings[0]
    assert "\n" not in warnings[0]


@pytest.mark.parametrize(
    ("yaml", "reason"),
    [
        ("splitwise_role: both", "must be one of mixed, prefill, decode, frontend, got 'both'"),
        ("kv_transfer_config: {a: b}", "splitwise_role makes a prefill or a decode server"),
        ("logits_processors: [a.b.C]", "custom logits processors are not run"),
        ("enable_early_stop: true", "requests would end at repetitions"),
        ("task: embed", "only text generation"),
        ("tokenizer_base_url: http://x", "the tokenizer runs in the server"),
        ("ssl_keyfile: x.pem", "plain HTTP"),
        ("device: cuda", "computes on the CPU"),
        ("load_strategy: ipc", "read from the checkpoint"),
    ],
)
def test_what_would_change_results_is_refused(tmp_path, yaml, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        load(tmp_path, yaml)
    assert "f.yaml:2: " in str(caught.value)


def test_command_line_overrides_a_refused_value(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("model: m\nsplitwise_role: prefill\n")
    loaded = load_config(["--config", str(path), "--splitwise-role", "mixed"])
    assert loaded.warnings == ()


def test_key_written_in_both_places_is_named_once(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("model: m\ndata_parallel_size: 4\n")
    loaded = load_config(["--config", str(path), "--data-parallel-size", "2"])
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith("--data-parallel-size: ")


@pytest.mark.parametrize(
    ("arguments", "num_warnings"),
    [
        (["-tp", "1"], 0),
        (["-tp", "4"], 1),
        (["--tensor-parallel-size", "1"], 0),
        (["--enable-output-caching"], 0),
        (["--no-enable-output-caching"], 1),
        (["--enable-output-caching", "false"], 1),
        (["--swap-space", "0"], 0),
        (["--controller-port", "-1"], 0),
        (["--splitwise-role", "mixed"], 0),
        (["--early-stop-config", '{"window_size": 3}'], 1),
        (["--lm_head-fp32"], 1),
        (["--max-processor-cache", "-1"], 0),
    ],
)
def test_foreign_flags_on_the_command_line(arguments, num_warnings):
    assert len(load_config(["--model", "m", *arguments]).warnings) == num_warnings


def test_graph_optimisation_is_the_step_program(tmp_path):
    assert load_config(["--model", "m"]).config.graph_optimization.use_step_program is True
    loaded = load(tmp_path, "graph_optimization_config: {use_cudagraph: false}")
    assert loaded.config.graph_optimization.use_step_program is False
    assert loaded.warnings == ()
    loaded = load_config(["--model", "m", "--enforce-eager"])
    assert loaded.config.graph_optimization.use_step_program is False
    assert loaded.warnings == ()
    flag = "--graph-optimization-config.use_step_program"
    loaded = load_config(["--model", "m", flag, "false"])
    assert loaded.config.graph_optimization.use_step_program is False
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("auto", "bfloat16"),
        ("bf16", "bfloat16"),
        ("BFLOAT16", "bfloat16"),
        ("float32", "float32"),
        ("int8", "int8"),
        ("int8_per_token_head", "int8"),
    ],
)
def test_spellings_of_the_cache_type(tmp_path, yaml, expected):
    assert load(tmp_path, f"kv_cache_dtype: {yaml}").config.cache.kv_cache_dtype == expected


@pytest.mark.parametrize("name", ["fp8", "block_wise_fp8", "fp8_e4m3", "int8_zp"])
def test_other_types_of_the_cache_are_told_the_nearest(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"f.yaml:2: kv_cache_dtype: {name} is not available"):
        load(tmp_path, f"kv_cache_dtype: {name}")
    with pytest.raises(ConfigError, match="--kv-cache-dtype: .*the nearest is int8$"):
        load_config(["--model", "m", "--kv-cache-dtype", name])


def test_mindie_names(tmp_path):
    loaded = load(
        tmp_path,
        "maxSeqLen: 100\nmaxBatchSize: 3\ncacheBlockSize: 16\nipAddress: 127.0.0.1\nworldSize: 1\n",
    )
    assert loaded.config.model.max_model_len == 100
    assert loaded.config.scheduler.max_num_seqs == 3
    assert loaded.config.cache.block_size == 16
    assert loaded.config.server.host == "127.0.0.1"
    assert loaded.warnings == ()


def test_two_names_of_one_key_that_disagree(tmp_path):
    with pytest.raises(
        ConfigError, match=r"f.yaml:3: maxBatchSize: 3 contradicts max_num_seqs \(2"
    ):
        load(tmp_path, "max_num_seqs: 2\nmaxBatchSize: 3\n")


def test_foreign_name_in_a_stronger_place_wins(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("model: m\nmax_num_seqs: 2\n")
    loaded = load_config(["--config", str(path), "--maxBatchSize", "3"])
    assert loaded.config.scheduler.max_num_seqs == 3


def test_a_published_fastdeploy_benchmark_file_starts_with_warnings_only(tmp_path):
    loaded = load(
        tmp_path,
        "max_model_len: 32768\nmax_num_seqs: 96\ngpu_memory_utilization: 0.8\n"
        "kv_cache_ratio: 0.71\ntensor_parallel_size: 4\nquantization: wint4\n",
    )
    assert loaded.config.model.quantization == "wint4"
    assert loaded.config.model.max_model_len == 32768
    assert len(loaded.warnings) == 2
