# SPDX-License-Identifier: Apache-2.0
"""Keys and spellings of FastDeploy, vLLM and MindIE, and what becomes of each here.

The only place that knows them. A key is renamed, or it describes what fdspec does anyway, or it is
accepted with one warning, or it is refused because leaving it out would change results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fdspec.config.settings import Setting
from fdspec.config.values import plain_value
from fdspec.core.errors import ConfigError

SPECULATIVE = "speculative_config"
METHOD_ALIASES = {
    "ngram_match": "ngram",
    "prompt_lookup": "ngram",
    "[ngram]": "ngram",
}
UNAVAILABLE_METHODS = {
    "mtp": "mtp",
    "deepseek_mtp": "mtp",
    "ernie_mtp": "mtp",
    "qwen3_next_mtp": "mtp",
    "suffix": "suffix",
    "draft_model": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle",
    "medusa": "medusa",
    "mlp_speculator": "mlp_speculator",
    "memory": "memory",
    "memory_decoding": "memory",
    "lookahead": "lookahead",
    "la": "lookahead",
}
_QUANTIZATION_ALIASES = {"wint8_weight_only": "wint8", "weight_only_int8": "wint8"} | {
    "weight_only_int4": "wint4",
    "bf16": "bfloat16",
}
_OFF = (None, False, "off", "none", "null", "", "false")


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """What becomes of one foreign key.

    Attributes:
        to: own key of the same meaning; empty if there is none.
        honoured: values that say what fdspec does anyway; accepted in silence.
        reason: for other values: why they have no effect here, or why they are refused.
        refused: True if leaving the key out would change results.
        rewrite: turns the value into the own key's value (None: the key has no effect);
            without one the value is taken as it is.
    """

    to: str = ""
    honoured: tuple[object, ...] = ()
    reason: str = ""
    refused: bool = False
    rewrite: Callable[[object], object] | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """A setting in fdspec's own words; None if nothing is left of it."""

    setting: Setting | None
    warning: str | None = None


def own_name(setting: Setting) -> str:
    """Name of the own key that a setting decides about; its own name if there is none."""
    key = foreign_keys().get(setting.name)
    if key is None or not key.to or (key.rewrite and key.rewrite(plain_value(setting)) is None):
        return setting.name
    return key.to


def translate(setting: Setting) -> Translation:
    """Put a setting into fdspec's own names and values.

    Raises:
        ConfigError: the key asks for something that is not there and cannot be left out.
    """
    key = foreign_keys().get(setting.name)
    if key is None:
        return Translation(_own_value(setting))
    value = plain_value(setting)
    name = own_name(setting)
    if name != setting.name:
        renamed = setting.renamed(name)
        if key.rewrite is not None:
            renamed = renamed.with_value(key.rewrite(value))
        return Translation(_own_value(renamed))
    if any(value == known and type(value) is type(known) for known in key.honoured):
        return Translation(None)
    if key.refused:
        raise ConfigError(f"{setting.where}: {value!r} is not possible: {key.reason}")
    return Translation(None, f"{setting.where}: has no effect: {key.reason}")


def is_off(value: object) -> bool:
    """True if a value of speculative_config turns speculation off."""
    if isinstance(value, str):
        value = value.strip().lower()
    return value == {} or value in _OFF


def _own_value(setting: Setting) -> Setting:
    """Replace the foreign spellings of values."""
    if not isinstance(setting.value, str):
        return setting
    text = setting.value.strip().lower()
    if setting.name == f"{SPECULATIVE}.method":
        return setting.with_value(_method(setting, text.replace("-", "_")))
    if setting.name == f"{SPECULATIVE}.verify_strategy" and text == "target_sampling":
        return setting.with_value("target_match")
    if setting.name == "kv_cache_dtype" and text in ("auto", "bf16", "fp32"):
        return setting.with_value("float32" if text == "fp32" else "bfloat16")
    if setting.name == "quantization" and text in _QUANTIZATION_ALIASES:
        return setting.with_value(_QUANTIZATION_ALIASES[text])
    return setting


def _method(setting: Setting, text: str) -> str:
    method = METHOD_ALIASES.get(text, text)
    if method in UNAVAILABLE_METHODS:
        raise ConfigError(
            f"{setting.where}: {setting.value} is not available in this version; "
            "available: ngram, naive (or off)"
        )
    return method


def _model_as_method(value: object) -> object:
    return "ngram" if str(value).strip("[]'\" ").lower() in ("ngram", "ngram_match") else None


def _not(value: object) -> object:
    return not value


def _load_format(value: object) -> object:
    return "dummy" if value == "dummy" else "default_v1"


def _same(
    to: str, rewrite: Callable[[object], object] | None = None, reason: str = ""
) -> ForeignKey:
    return ForeignKey(to=to, rewrite=rewrite, reason=reason)


def _warn(reason: str, *honoured: object) -> ForeignKey:
    return ForeignKey(honoured=(None, *honoured), reason=reason)


def _refuse(reason: str, *honoured: object) -> ForeignKey:
    return ForeignKey(honoured=(None, *honoured), reason=reason, refused=True)


def _each(names: str, key: ForeignKey) -> dict[str, ForeignKey]:
    return dict.fromkeys(names.split(), key)


@cache
def foreign_keys() -> dict[str, ForeignKey]:
    """Every foreign key by its dotted name."""
    return {**_server_keys(), **_model_keys(), **_engine_keys(), **_nested_keys()}


def _server_keys() -> dict[str, ForeignKey]:
    refuse_tls = "the server speaks plain HTTP; put it behind a proxy that ends TLS"
    shared_queue = "there is no shared request queue; requests come over this server's HTTP port"
    one_engine = "prefill and decode run in one engine (splitwise_role: mixed)"
    return {
        # FastDeploy
        "workers": _warn("one API process serves every request", 1),
        "metrics_port": _warn("/metrics is served on the main port"),
        "controller_port": _warn("there is no controller port", -1),
        "max_waiting_time": _warn("requests wait as long as max_concurrency lets them in", -1),
        "timeout": _warn("the API process is not restarted when a request takes long"),
        "enable_mm_output": _warn("text models only", False),
        "router": _warn("the server does not register with a router"),
        "ips": _warn("one server, one machine"),
        "scheduler_name": _refuse(shared_queue, "local"),
        **_each(
            "scheduler_host scheduler_port scheduler_db scheduler_password scheduler_topic "
            "scheduler_ttl scheduler_min_load_score scheduler_load_shards_num "
            "scheduler_sync_period scheduler_expire_period scheduler_release_load_expire_period "
            "scheduler_reader_parallel scheduler_writer_parallel scheduler_reader_batch_size "
            "scheduler_writer_batch_size",
            _warn(shared_queue),
        ),
        "scheduler_max_size": _warn("max_concurrency limits the requests in the server", -1),
        "splitwise_role": _refuse(one_engine, "mixed"),
        **_each(
            "cache_transfer_protocol pd_comm_port rdma_comm_ports innode_prefill_ports "
            "cache_queue_port",
            _warn(one_engine),
        ),
        "engine_worker_queue_port": _warn("server and engine talk over a private socket"),
        # vLLM
        "api_server_count": _warn("one API process serves every request", 1),
        "headless": _refuse("the API and the engine start together", False),
        **_each("ssl_keyfile ssl_certfile ssl_ca_certs", _refuse(refuse_tls)),
        "middleware": _refuse("the server takes no middleware", []),
        **_each(
            "allow_credentials allowed_origins allowed_methods allowed_headers root_path",
            _warn("a proxy in front of the server decides on origins and paths"),
        ),
        **_each(
            "disable_log_requests disable_log_stats enable_log_requests enable_log_outputs "
            "disable_uvicorn_access_log max_log_len",
            _warn("uvicorn_log_level and the variable FDSPEC_LOG decide what is logged"),
        ),
        "disable_fastapi_docs": _warn("the API description stays on"),
        "response_role": _warn("answers have the role assistant", "assistant"),
        "enable_prompt_tokens_details": _warn("usage always has the details"),
        **_each("otlp_traces_endpoint collect_detailed_traces", _warn("there is no tracing")),
        "kv_transfer_config": _refuse(one_engine),
        "kv_events_config": _warn("no KV events are published"),
        # MindIE
        "ipAddress": _same("host"),
        **_each("managementPort metricsPort", _warn("everything is served on one port")),
        "maxLinkNum": _same("max_concurrency"),
        "httpsEnabled": _refuse(refuse_tls, False),
    }


def _model_keys() -> dict[str, ForeignKey]:
    text_only = "text models only"
    plain_text = "the answer's text is returned whole; there are no parsers in this version"
    weights_once = "weights are read once, at the start"
    generate_only = "only text generation is served"
    return {
        # FastDeploy
        "model_config_name": _refuse("the file is called config.json", "config.json"),
        "tokenizer_base_url": _refuse("the tokenizer runs in the server; set tokenizer"),
        "task": _refuse(generate_only, "generate", "auto"),
        "runner": _refuse(generate_only, "auto", "generate"),
        "convert": _refuse(generate_only, "auto", "none"),
        "override_pooler_config": _refuse(generate_only),
        "use_warmup": _warn("the kernels need no warm-up", 0),
        **_each(
            "limit_mm_per_prompt mm_processor_kwargs max_encoder_cache max_processor_cache "
            "mm_processor_cache_gb",
            _warn(text_only, -1, 0),
        ),
        **_each("enable_mm disable_chunked_mm_input", _warn(text_only, False)),
        **_each("reasoning_parser tool_call_parser tool_parser_plugin", _warn(plain_text)),
        **_each("enable_auto_tool_choice enable_reasoning", _warn(plain_text, False)),
        "dynamic_load_weight": _warn(weights_once, False),
        "load_strategy": _refuse("weights are read from the checkpoint", "normal"),
        "rsync_config": _warn(weights_once),
        "model_impl": _refuse("fdspec runs its own layers", "auto", "fastdeploy"),
        "lm_head_fp32": _warn("logits are float32 whatever the weights' format", False),
        "logits_processors": _refuse("custom logits processors are not run", []),
        # vLLM
        "dtype": _warn(
            "activations are float32 or int8; quantization sets the weights' format",
            "auto",
        ),
        "trust_remote_code": _warn("no code of a checkpoint is ever run", False),
        "tokenizer_mode": _warn("tokenizer.json or the GGUF file decides", "auto", "hf"),
        **_each("tokenizer_revision code_revision", _warn("revision applies to the whole model")),
        **_each("hf_overrides hf_config_path", _refuse("config.json of the model counts", {})),
        "download_dir": _warn("the hub library's own cache is used"),
        "load_format": _same("load_choices", _load_format),
        "generation_config": _warn("requests have the API's own defaults", "vllm"),
        "override_generation_config": _refuse("requests have the API's own defaults", {}),
        **_each("enable_lora lora_modules", _refuse("adapters are not served", False, [])),
        **_each("max_loras max_lora_rank", _warn("adapters are not served")),
        # MindIE
        "modelWeightPath": _same("model"),
        "modelName": _same("served_model_name"),
        "maxSeqLen": _same("max_model_len"),
        "trustRemoteCode": _warn("no code of a checkpoint is ever run", False),
        "backendType": _warn("fdspec runs its own layers"),
    }


def _engine_keys() -> dict[str, ForeignKey]:
    one_process = "one process computes the whole model; num_threads sets its cores"
    experts = "no mixture-of-experts model is served"
    no_prefix_cache = "prompts are always computed; the answers are the same"
    one_pool = "prompt and output share all blocks"
    mixed_steps = "any number of prompts may share a step's tokens"
    recompute = "a preempted sequence is computed again; nothing is swapped"
    no_drafting_model = "there are no drafting models in this version"
    structured = "there is no structured output; a request that asks for it is refused"
    return {
        # FastDeploy
        **_each(
            "tensor_parallel_size tp data_parallel_size dp pipeline_parallel_size pp "
            "decode_context_parallel_size worldSize",
            _warn(one_process, 1),
        ),
        **_each("local_data_parallel_id data_parallel_rank", _warn(one_process, 0)),
        **_each(
            "disable_custom_all_reduce enable_flashinfer_allreduce_fusion "
            "use_internode_ll_two_stage disable_sequence_parallel_moe "
            "distributed_executor_backend max_parallel_loading_workers",
            _warn(one_process, False),
        ),
        **_each(
            "enable_expert_parallel enable_eplb eplb_config routing_replay_config "
            "enable_chunked_moe chunked_moe_size shutdown_comm_group_if_worker_idle",
            _warn(experts, False),
        ),
        "plas_attention_config": _warn("attention is exact"),
        "kv_cache_ratio": _warn(one_pool),
        **_each("prealloc_dec_block_slot_num_threshold static_decode_blocks", _warn(one_pool)),
        **_each("swap_space cpu_offload_gb preemption_mode", _warn(recompute, 0)),
        "kvcache_storage_backend": _warn("KV is kept in this server's memory only"),
        "write_policy": _warn("KV is kept in this server's memory only", "write_through"),
        **_each("enable_prefix_caching enable_output_caching", _warn(no_prefix_cache, False)),
        **_each("max_num_partial_prefills max_long_partial_prefills", _warn(mixed_steps)),
        "guided_decoding_backend": _warn(structured, "off"),
        "guided_decoding_disable_any_whitespace": _warn(structured, False),
        "structured_outputs_config": _warn(structured),
        "enable_logprob": _warn("logprobs are always there for requests that ask", True),
        "enable_keep_sampling_mask": _warn("the kept vocabulary is not returned", False),
        "enable_entropy": _warn("entropy is not computed", False),
        "enable_early_stop": _refuse("requests would end at repetitions", False),
        "early_stop_config": _warn("requests do not end at repetitions"),
        "enable_overlap_schedule": _warn("a step ends before the next one is planned", False),
        # vLLM
        "enforce_eager": _same("graph_optimization_config.use_step_program", _not),
        "device": _refuse("this version computes on the CPU", "auto", "cpu"),
        "prefix_caching_hash_algo": _warn(no_prefix_cache),
        "scheduling_policy": _warn("requests are served by priority, then by arrival", "fcfs"),
        **_each("async_scheduling num_scheduler_steps", _warn("one step at a time", False, 1)),
        "max_seq_len_to_capture": _warn("a step program has no largest length"),
        **_each("compilation_config optimization_level", _warn("see graph_optimization_config")),
        "calculate_kv_scales": _warn("the KV cache is not scaled", False),
        # vLLM's older flags of speculation
        "speculative_model": _same(f"{SPECULATIVE}.method", _model_as_method, no_drafting_model),
        "num_speculative_tokens": _same(f"{SPECULATIVE}.num_speculative_tokens"),
        "ngram_prompt_lookup_max": _same(f"{SPECULATIVE}.max_ngram_size"),
        "ngram_prompt_lookup_min": _same(f"{SPECULATIVE}.min_ngram_size"),
        "speculative_disable_by_batch_size": _same(f"{SPECULATIVE}.disable_by_batch_size"),
        # MindIE
        "maxBatchSize": _same("max_num_seqs"),
        "maxPrefillTokens": _same("max_num_batched_tokens"),
        "cacheBlockSize": _same("block_size"),
        "cpuMemSize": _warn(recompute, 0),
        "npuMemSize": _warn("gpu_memory_utilization sets the memory"),
        "plugin_params": _refuse("set speculative_config"),
    }


def _nested_keys() -> dict[str, ForeignKey]:
    no_drafting_model = "there are no drafting models in this version"
    suffix = "it belongs to suffix decoding, which this version does not have"
    graph = "a step program needs no captured graphs"
    keys = {
        # FastDeploy
        **_each(
            "mtp_strategy num_model_steps num_gpu_block_expand_ratio quantization "
            "prefill_one_step_stop enable_draft_logprob",
            _warn(no_drafting_model, False),
        ),
        "max_candidate_len": _warn("topp looks at the 5 most likely tokens", 5),
        "verify_window": _warn("topp judges each token by itself", 0),
        "enf_gen_phase_tag": _refuse("tokens are not forced after the thinking part", False),
        **_each(
            "suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests "
            "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob",
            _warn(suffix),
        ),
        # vLLM
        "model": _same(f"{SPECULATIVE}.method", _model_as_method, no_drafting_model),
        "prompt_lookup_max": _same(f"{SPECULATIVE}.max_ngram_size"),
        "prompt_lookup_min": _same(f"{SPECULATIVE}.min_ngram_size"),
        **_each(
            "draft_tensor_parallel_size max_model_len revision code_revision enforce_eager "
            "parallel_drafting speculative_token_tree disable_padded_drafter_batch",
            _warn(no_drafting_model),
        ),
        "disable_mqa_scorer": _warn("all draft rows are verified in one pass"),
        "disable_logprobs": _warn("logprobs are right under speculation", False),
        "acceptance_method": _warn("verify_strategy decides", "rejection_sampler"),
        **_each("posterior_threshold posterior_alpha", _warn("verify_strategy decides")),
    }
    graph_keys = {
        "use_cudagraph": _same("graph_optimization_config.use_step_program"),
        **_each(
            "graph_opt_level cudagraph_capture_sizes sot_warmup_sizes use_unique_memory_pool "
            "draft_model_use_cudagraph cudagraph_only_prefill full_cuda_graph "
            "cudagraph_splitting_ops cudagraph_num_of_warmups max_capture_size flag_cudagraph",
            _warn(graph),
        ),
    }
    nested = {f"{SPECULATIVE}.{name}": key for name, key in keys.items()}
    return nested | {f"graph_optimization_config.{name}": key for name, key in graph_keys.items()}
