# SPDX-License-Identifier: Apache-2.0
"""Keys of FastDeploy, vLLM and MindIE, and what becomes of each here.

The only place that knows them; `foreign_values.py` knows their spellings of values. A key is
renamed, or it describes what fdspec does anyway, or it is accepted with one warning, or it is
refused because leaving it out would change results. `translation.py` applies the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

SPECULATIVE = "speculative_config"
GRAPH = "graph_optimization_config"
SECTION_ALIASES = {"plugin_params": SPECULATIVE}

_ONE_API_PROCESS = "one API process serves every request"
_SPLIT = "splitwise_role makes a prefill or a decode server, kv_transfer_* say how caches travel"
_ONE_PROCESS = "one process computes the whole model; num_threads sets its cores"
_PLAIN_HTTP = "the server speaks plain HTTP; put it behind a proxy that ends TLS"
_GENERATE_ONLY = "only text generation is served"
_TEXT_ONLY = "text models only"
_PLAIN_TEXT = "the answer's text is returned whole; there are no parsers in this version"
_WEIGHTS_ONCE = "weights are read once, at the start"
_OWN_LAYERS = "fdspec runs its own layers"
_NO_REMOTE_CODE = "no code of a checkpoint is ever run"
_SWAP = "swap_space, and what is quicker, decide what becomes of a preempted sequence"
_STRUCTURED = "there is no structured output; a request that asks for it is refused"
_CHAINS = "a model drafts a chain, one token in each pass"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """What becomes of one foreign key.

    Attributes:
        to: own key of the same meaning; empty if there is none.
        honoured: values that say what fdspec does anyway; accepted in silence, and so is null.
        reason: for other values: why they have no effect here, or why they are refused.
        refused: True if leaving the key out would change results.
        rewrite: turns the value into the own key's value (None: the key has no effect);
            without one the value is taken as it is.
        otherwise: own key that takes the values which `rewrite` has no use for; empty if none does.
    """

    to: str = ""
    honoured: tuple[object, ...] = ()
    reason: str = ""
    refused: bool = False
    rewrite: Callable[[object], object] | None = None
    otherwise: str = ""


@cache
def foreign_keys() -> dict[str, ForeignKey]:
    """Every foreign key by its dotted name."""
    return {
        **_fastdeploy_server_keys(),
        **_fastdeploy_split_keys(),
        **_fastdeploy_model_keys(),
        **_fastdeploy_engine_keys(),
        **_vllm_server_keys(),
        **_vllm_model_keys(),
        **_vllm_engine_keys(),
        **_mindie_keys(),
        **_speculative_keys(),
        **_graph_keys(),
    }


def _fastdeploy_server_keys() -> dict[str, ForeignKey]:
    return {
        "workers": _warn(_ONE_API_PROCESS, 1),
        "metrics_port": _warn("/metrics is served on the main port"),
        "controller_port": _warn("there is no controller port", -1),
        "max_waiting_time": _warn("requests wait as long as max_concurrency lets them in", -1),
        "timeout": _warn("the API process is not restarted when a request takes long"),
        "enable_mm_output": _warn(_TEXT_ONLY, False),
        "engine_worker_queue_port": _warn("server and engine talk over a private socket"),
        "ips": _warn("one server, one machine"),
    }


def _fastdeploy_split_keys() -> dict[str, ForeignKey]:
    """Queues of several servers, and prefill and decode in servers of their own."""
    own_queue = "the topic's broker does this by itself"
    return {
        "router": _warn("the server does not register with a router"),
        **_each(
            "scheduler_min_load_score scheduler_load_shards_num scheduler_sync_period "
            "scheduler_expire_period scheduler_release_load_expire_period "
            "scheduler_reader_parallel scheduler_writer_parallel scheduler_reader_batch_size "
            "scheduler_writer_batch_size",
            _warn(own_queue),
        ),
        **_each(
            "cache_transfer_protocol pd_comm_port rdma_comm_ports innode_prefill_ports "
            "cache_queue_port",
            _warn(_SPLIT),
        ),
    }


def _fastdeploy_model_keys() -> dict[str, ForeignKey]:
    return {
        "rope_scaling.rope_type": _same("rope_scaling.type"),
        "rope_scaling.rope_theta": _same("rope_theta"),
        "model_config_name": _refuse("the file is called config.json", "config.json"),
        "tokenizer_base_url": _refuse("the tokenizer runs in the server; set tokenizer"),
        "task": _refuse(_GENERATE_ONLY, "generate", "auto"),
        "runner": _refuse(_GENERATE_ONLY, "auto", "generate"),
        "convert": _refuse(_GENERATE_ONLY, "auto", "none"),
        "override_pooler_config": _refuse(_GENERATE_ONLY),
        "use_warmup": _warn("the kernels need no warm-up", 0),
        **_each(
            "limit_mm_per_prompt mm_processor_kwargs max_encoder_cache max_processor_cache",
            _warn(_TEXT_ONLY, -1, 0),
        ),
        **_each("enable_mm disable_chunked_mm_input", _warn(_TEXT_ONLY, False)),
        **_each("reasoning_parser tool_call_parser tool_parser_plugin", _warn(_PLAIN_TEXT)),
        "dynamic_load_weight": _warn(_WEIGHTS_ONCE, False),
        "load_strategy": _refuse("weights are read from the checkpoint", "normal"),
        "rsync_config": _warn(_WEIGHTS_ONCE),
        "model_impl": _refuse(_OWN_LAYERS, "auto", "fastdeploy"),
        "lm_head_fp32": _warn("logits are float32 whatever the weights' format", False),
        "logits_processors": _refuse("custom logits processors are not run", []),
    }


def _fastdeploy_engine_keys() -> dict[str, ForeignKey]:
    one_pool = "prompt and output share all blocks"
    own_memory = "KV is kept in this server's memory only"
    return {
        "tp": _same("tensor_parallel_size"),
        **_each("data_parallel_size dp", _warn(_ONE_PROCESS, 1)),
        "local_data_parallel_id": _warn(_ONE_PROCESS, 0),
        **_each(
            "disable_custom_all_reduce enable_flashinfer_allreduce_fusion "
            "use_internode_ll_two_stage disable_sequence_parallel_moe",
            _warn(_ONE_PROCESS, False),
        ),
        **_each(
            "enable_expert_parallel enable_eplb eplb_config routing_replay_config "
            "enable_chunked_moe chunked_moe_size shutdown_comm_group_if_worker_idle",
            _warn("experts are computed by one process, and none is copied", False),
        ),
        "plas_attention_config": _warn("attention is exact"),
        **_each(
            "kv_cache_ratio prealloc_dec_block_slot_num_threshold static_decode_blocks",
            _warn(one_pool),
        ),
        "kvcache_storage_backend": _warn(own_memory),
        "write_policy": _warn(own_memory, "write_through"),
        "enable_output_caching": _warn(
            "enable_prefix_caching keeps answers as well as prompts", True
        ),
        "guided_decoding_backend": _warn(_STRUCTURED, "off"),
        "guided_decoding_disable_any_whitespace": _warn(_STRUCTURED, False),
        "enable_logprob": _warn("logprobs are always there for requests that ask", True),
        "enable_keep_sampling_mask": _warn("the kept vocabulary is not returned", False),
        "enable_entropy": _warn("entropy is not computed", False),
        "enable_early_stop": _refuse("requests would end at repetitions", False),
        "early_stop_config": _warn("requests do not end at repetitions"),
        "enable_overlap_schedule": _warn("a step ends before the next one is planned", False),
    }


def _vllm_server_keys() -> dict[str, ForeignKey]:
    return {
        "api_server_count": _warn(_ONE_API_PROCESS, 1),
        "headless": _refuse("the API and the engine start together", False),
        **_each("ssl_keyfile ssl_certfile ssl_ca_certs", _refuse(_PLAIN_HTTP)),
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
        "kv_transfer_config": _refuse(_SPLIT),
        "kv_events_config": _warn("no KV events are published"),
        **_each("enable_auto_tool_choice enable_reasoning", _warn(_PLAIN_TEXT, False)),
    }


def _vllm_model_keys() -> dict[str, ForeignKey]:
    no_adapters = "adapters are not served"
    api_defaults = "requests have the API's own defaults"
    return {
        "dtype": _warn(
            "activations are float32 or int8; quantization sets the weights' format", "auto"
        ),
        "mm_processor_cache_gb": _warn(_TEXT_ONLY, 0),
        "trust_remote_code": _warn(_NO_REMOTE_CODE, False),
        "tokenizer_mode": _warn("tokenizer.json or the GGUF file decides", "auto", "hf"),
        **_each("tokenizer_revision code_revision", _warn("revision applies to the whole model")),
        **_each("hf_overrides hf_config_path", _refuse("config.json of the model counts", {})),
        "download_dir": _warn("the hub library's own cache is used"),
        "load_format": _same("load_choices", _load_format),
        "generation_config": _warn(api_defaults, "vllm"),
        "override_generation_config": _refuse(api_defaults, {}),
        **_each("enable_lora lora_modules", _refuse(no_adapters, False, [])),
        **_each("max_loras max_lora_rank", _warn(no_adapters)),
    }


def _vllm_engine_keys() -> dict[str, ForeignKey]:
    return {
        **_each("pipeline_parallel_size pp decode_context_parallel_size", _warn(_ONE_PROCESS, 1)),
        "data_parallel_rank": _warn(_ONE_PROCESS, 0),
        **_each("distributed_executor_backend max_parallel_loading_workers", _warn(_ONE_PROCESS)),
        "cpu_offload_gb": _warn("weights stay in memory as they are", 0),
        "preemption_mode": _warn(_SWAP),
        "enforce_eager": _same(f"{GRAPH}.use_step_program", _not),
        "device": _refuse("this version computes on the CPU", "auto", "cpu"),
        "prefix_caching_hash_algo": _warn("cached blocks are named by BLAKE2b digests"),
        "structured_outputs_config": _warn(_STRUCTURED),
        "scheduling_policy": _warn("requests are served by priority, then by arrival", "fcfs"),
        **_each("async_scheduling num_scheduler_steps", _warn("one step at a time", False, 1)),
        "max_seq_len_to_capture": _warn("a step program has no largest length"),
        **_each("compilation_config optimization_level", _warn(f"see {GRAPH}")),
        "calculate_kv_scales": _warn("an int8 KV cache is scaled as it is written", False),
        # Older flags of speculation.
        "speculative_model": _MODEL_OR_METHOD,
        "speculative_model_quantization": _same(f"{SPECULATIVE}.quantization"),
        "speculative_draft_tensor_parallel_size": _warn(_ONE_PROCESS, 1),
        "num_speculative_tokens": _same(f"{SPECULATIVE}.num_speculative_tokens"),
        "ngram_prompt_lookup_max": _same(f"{SPECULATIVE}.max_ngram_size"),
        "ngram_prompt_lookup_min": _same(f"{SPECULATIVE}.min_ngram_size"),
        "speculative_disable_by_batch_size": _same(f"{SPECULATIVE}.disable_by_batch_size"),
    }


def _mindie_keys() -> dict[str, ForeignKey]:
    no_plan = "the scheduler fills each step by itself"
    return {
        "ipAddress": _same("host"),
        **_each(
            "managementIpAddress managementPort metricsPort",
            _warn("everything is served on one port"),
        ),
        "maxLinkNum": _same("max_concurrency"),
        "httpsEnabled": _refuse(_PLAIN_HTTP, False),
        **_each(
            "tlsCaPath tlsCaFile tlsCert tlsPk tlsPkPwd tlsCrlPath tlsCrlFiles managementTlsCaFile "
            "managementTlsCert managementTlsPk managementTlsPkPwd managementTlsCrlPath "
            "managementTlsCrlFiles kmcKsfMaster kmcKsfStandby",
            _warn(_PLAIN_HTTP, "", []),
        ),
        **_each(
            "interCommTLSEnabled interCommPort interCommTlsCaPath interCommTlsCaFiles "
            "interCommTlsCert interCommPk interCommPkPwd interCommTlsCrlPath interCommTlsCrlFiles "
            "interNodeTLSEnabled interNodeTlsCaPath interNodeTlsCaFiles interNodeTlsCert "
            "interNodeTlsPk interNodeTlsPkPwd interNodeTlsCrlPath interNodeTlsCrlFiles "
            "interNodeKmcKsfMaster interNodeKmcKsfStandby multiNodesInferEnabled "
            "multiNodesInferPort distDPServerEnabled kv_trans_timeout kv_link_timeout",
            _warn("one server, one machine", False),
        ),
        "allowAllZeroIpListening": _warn("host decides"),
        "inferMode": _refuse(_SPLIT, "standard"),
        "openAiSupport": _warn("the API is OpenAI's, with vLLM's additions", "vllm"),
        "fullTextEnabled": _warn("streams hold what is new", False),
        **_each("tokenTimeout e2eTimeout", _warn("requests take the time they need")),
        **_each(
            "backendName modelInstanceNumber npuDeviceIds tokenizerProcessNumber modelInstanceType "
            "async_scheduler_wait_time Version",
            _warn(_ONE_PROCESS),
        ),
        "truncation": _refuse("prompts are not cut", False),
        "maxInputTokenLen": _warn("max_model_len limits prompt and output together"),
        "modelWeightPath": _same("model"),
        "modelName": _same("served_model_name"),
        "maxSeqLen": _same("max_model_len"),
        "trustRemoteCode": _warn(_NO_REMOTE_CODE, False),
        "backendType": _warn(_OWN_LAYERS),
        "LogConfig": _warn("the variable FDSPEC_LOG decides what is logged"),
        "worldSize": _same("tensor_parallel_size"),
        "maxBatchSize": _same("max_num_seqs"),
        "maxPrefillTokens": _same("max_num_batched_tokens"),
        "cacheBlockSize": _same("block_size"),
        "cpuMemSize": _same("swap_space"),
        "npuMemSize": _warn("gpu_memory_utilization sets the memory", -1),
        **_each(
            "templateType templateName maxPrefillBatchSize prefillTimeMsPerReq prefillPolicyType "
            "decodeTimeMsPerReq decodePolicyType maxPreemptCount supportSelectBatch "
            "maxQueueDelayMicroseconds maxFirstTokenWaitTime",
            _warn(no_plan),
        ),
        "maxIterTimes": _warn("max_tokens of each request limits its answer"),
        "speculationGamma": _same(f"{SPECULATIVE}.max_draft_rows", _above_zero),
    }


def _speculative_keys() -> dict[str, ForeignKey]:
    keys = {
        # FastDeploy
        **_each(
            "prefill_one_step_stop enable_draft_logprob",
            _warn("a prefill server drafts nothing, and draft tokens have no logprobs", False),
        ),
        "num_gpu_block_expand_ratio": _warn("a drafting model's cache is in the same blocks"),
        "max_candidate_len": _warn("topp looks at the 5 most likely tokens", 5),
        "verify_window": _warn("topp judges each token by itself", 0),
        "enf_gen_phase_tag": _refuse("tokens are not forced after the thinking part", False),
        # MindIE's plugin_params
        "plugin_type": _same(f"{SPECULATIVE}.method"),
        "decoding_length": _same(f"{SPECULATIVE}.num_speculative_tokens"),
        "dynamic_algo": _same(f"{SPECULATIVE}.adaptive_draft_length"),
        # vLLM
        "model": _MODEL_OR_METHOD,
        "prompt_lookup_max": _same(f"{SPECULATIVE}.max_ngram_size"),
        "prompt_lookup_min": _same(f"{SPECULATIVE}.min_ngram_size"),
        **_each(
            "parallel_drafting speculative_token_tree disable_padded_drafter_batch",
            _warn(_CHAINS),
        ),
        "draft_tensor_parallel_size": _warn(_ONE_PROCESS, 1),
        "max_model_len": _warn("drafts end where the drafting model's positions do"),
        **_each("revision code_revision", _warn("the drafting model's default revision is used")),
        "enforce_eager": _warn("a drafting model always runs as a step program", False),
        "disable_mqa_scorer": _warn("all draft rows are verified in one pass"),
        "disable_logprobs": _warn("logprobs are right under speculation", False),
        "acceptance_method": _warn("verify_strategy decides", "rejection_sampler"),
        **_each("posterior_threshold posterior_alpha", _warn("verify_strategy decides")),
    }
    return {f"{SPECULATIVE}.{name}": key for name, key in keys.items()}


def _graph_keys() -> dict[str, ForeignKey]:
    keys = {
        "use_cudagraph": _same(f"{GRAPH}.use_step_program"),
        **_each(
            "graph_opt_level cudagraph_capture_sizes sot_warmup_sizes use_unique_memory_pool "
            "draft_model_use_cudagraph cudagraph_only_prefill full_cuda_graph "
            "cudagraph_splitting_ops cudagraph_num_of_warmups max_capture_size flag_cudagraph",
            _warn("a step program needs no captured graphs"),
        ),
    }
    return {f"{GRAPH}.{name}": key for name, key in keys.items()}


def _model_as_method(value: object) -> object:
    return "ngram" if str(value).strip("[]'\" ").lower() in ("ngram", "ngram_match") else None


_MODEL_OR_METHOD = ForeignKey(
    to=f"{SPECULATIVE}.method", rewrite=_model_as_method, otherwise=f"{SPECULATIVE}.model"
)


def _above_zero(value: object) -> object:
    return None if value == 0 else value


def _not(value: object) -> object:
    return not value if isinstance(value, bool) else value


def _load_format(value: object) -> object:
    return "dummy" if value == "dummy" else "default_v1"


def _same(
    to: str, rewrite: Callable[[object], object] | None = None, reason: str = ""
) -> ForeignKey:
    return ForeignKey(to=to, rewrite=rewrite, reason=reason)


def _warn(reason: str, *honoured: object) -> ForeignKey:
    return ForeignKey(honoured=honoured, reason=reason)


def _refuse(reason: str, *honoured: object) -> ForeignKey:
    return ForeignKey(honoured=honoured, reason=reason, refused=True)


def _each(names: str, key: ForeignKey) -> dict[str, ForeignKey]:
    return dict.fromkeys(names.split(), key)
