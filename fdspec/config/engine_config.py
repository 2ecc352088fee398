# SPDX-License-Identifier: Apache-2.0
"""EngineConfig and its parts: every key that fdspec itself knows, with default and meaning.

Frozen values; an instance that exists is consistent. Made by `loader.py`, tests and Python users.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fdspec.config.checks import Contradiction, check_numbers
from fdspec.config.handoff import HandoffConfig
from fdspec.config.options import option
from fdspec.config.quantization import QUANTIZATIONS, check_quantization
from fdspec.config.rope_scaling import RopeScalingConfig
from fdspec.config.speculative import SpeculativeConfig
from fdspec.config.topic import TopicConfig

DEFAULT_TOKEN_BUDGET = 512


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is served, under which name, and in which weight format."""

    model: str = option(
        help="Folder, .gguf, .safetensors or .pdparams file, or hub id of the model."
    )
    served_model_name: tuple[str, ...] = option(
        (), help="Names of the model in the API; the first one is reported. Default: `model`."
    )
    tokenizer: str | None = option(
        None, help="Folder or file of the tokenizer. Default: the model's own."
    )
    revision: str | None = option(None, help="Branch, tag or commit if `model` is a hub id.")
    chat_template: str | None = option(
        None, help="Jinja file, or the template itself. Default: the model's own."
    )
    max_model_len: int | None = option(
        None,
        minimum=1,
        help="Most tokens of one sequence, prompt and output. Default: the model's own limit.",
    )
    rope_theta: float | None = option(
        None, minimum=1.0, help="Base of the rotary frequencies. Default: the checkpoint's."
    )
    quantization: str | None = option(
        None,
        help=f"Weight format: {QUANTIZATIONS}; _g32, _g64 or _g128 after the bits quantises groups "
        "of inputs, _channel whole channels, _min gives 4-bit groups a minimum (wint4_g64_min, "
        "wint8_g32_a16). Products are of 8-bit activations, with _a16 of float ones: slower and a "
        "little more accurate. A map names a format for each kind of layers: {dense: wint8, "
        "experts: wint4}. In a model with experts wint4 alone means that map, as in FastDeploy. "
        "Default: as the checkpoint has it.",
    )
    expert_quantization: str | None = option(
        None,
        help="Weight format of the routed experts of a mixture-of-experts model, where it is not "
        "that of quantization; the same names.",
    )
    load_choices: Literal["default", "default_v1", "dummy"] = option(
        "default_v1", help="dummy takes random weights; the others read the checkpoint."
    )
    weight_cache_gib: float = option(
        32.0,
        minimum=0.0,
        help="GiB of disk in which packed weights are kept, so that later starts map them instead "
        "of packing the checkpoint again; models used least recently go first. 0 keeps nothing.",
    )
    weight_cache_folder: str | None = option(
        None,
        help="Where packed weights are kept. Default: $XDG_CACHE_HOME/fdspec/weights, or "
        "~/.cache/fdspec/weights.",
    )
    seed: int | None = option(
        None,
        minimum=0,
        maximum=2**63 - 1,
        help="Start value for the keys of requests that bring no seed. Default: fresh ones.",
    )
    max_logprobs: int = option(
        20, minimum=-1, help="Most logprobs that a request may ask for; -1 is the vocabulary."
    )
    logprobs_mode: Literal["raw_logprobs"] = option(
        "raw_logprobs", help="Logprobs are those of the model, before penalties and temperature."
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self.model:
            raise Contradiction(("model",), "model must not be empty")
        for key in ("quantization", "expert_quantization"):
            check_quantization(key, getattr(self, key))

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names under which the API serves the model; at least one."""
        return self.served_model_name or (self.model,)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size and type of the KV cache."""

    block_size: int = option(64, minimum=1, maximum=1024, help="Tokens in a block of KV cache.")
    gpu_memory_utilization: float = option(
        0.5,
        minimum=0.01,
        maximum=1.0,
        help="Share of the memory (on CPU: of the RAM) that weights and KV cache may take. The "
        "cache never takes more than max_num_seqs sequences of max_model_len can fill.",
    )
    memory_gib: float | None = option(
        None,
        minimum=0.001,
        help="GiB of memory to plan for, instead of all that the machine or container has; with "
        "--dry-run those of one rank.",
    )
    num_gpu_blocks_override: int | None = option(
        None, minimum=1, help="Number of KV blocks, instead of a share of the memory."
    )
    kv_cache_dtype: Literal["bfloat16", "float32", "int8"] = option(
        "bfloat16",
        help="Type of the cached keys and values. int8 has a scale for each token and head and "
        "takes about half the memory (head_dim + 4 bytes for 2 * head_dim); docs/benchmarks.md has "
        "what it costs in accuracy.",
    )
    swap_space: float = option(
        0.0,
        minimum=0.0,
        help="GB (10^9 bytes) of memory beside the KV cache in which a preempted sequence is kept "
        "where copying it back is quicker than computing it again; 0 always computes.",
    )
    swap_space_path: str | None = option(
        None, help="Folder of a file to swap to, reserved at the start. Default: host memory."
    )
    enable_prefix_caching: bool = option(
        True,
        help="Keep the blocks of prompts and answers until their memory is needed, and share them "
        "with requests that begin with the same tokens.",
    )

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How many sequences and tokens share a step."""

    max_num_seqs: int = option(8, minimum=1, maximum=4096, help="Most sequences in one step.")
    max_num_batched_tokens: int | None = option(
        None,
        minimum=1,
        help=f"Most tokens in one step, drafts included. Default: {DEFAULT_TOKEN_BUDGET} with "
        "chunked prefill, else max_model_len; and never below max_num_seqs.",
    )
    enable_chunked_prefill: bool = option(
        True, help="Spread long prompts over several steps, beside the sequences that decode."
    )
    max_num_partial_prefills: int = option(
        1,
        minimum=1,
        help="Prompts that share a step's tokens while each needs several steps; with 1 the first "
        "one takes them all.",
    )
    max_long_partial_prefills: int = option(
        1,
        minimum=1,
        help="How many of these may be long; shorter prompts then pass the long ones that wait.",
    )
    long_prefill_token_threshold: int = option(
        0,
        minimum=0,
        help="A prompt of more tokens than this is long. Default: 4 % of max_model_len.",
    )
    max_step_ms: float | None = option(
        None,
        minimum=0.1,
        help="Milliseconds that a step should take at most while sequences decode: prompts get as "
        "many tokens as fit into that time, by the measured times of earlier steps, and never "
        "fewer than 4. Bounds the time between two tokens of a stream. Default: no limit.",
    )
    fair_share_by_user: bool = option(
        False,
        help="Within a priority, serve users (field `user`, else the API key) by turns, so that "
        "each gets the same share of tokens; false serves in order of arrival.",
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        budget = self.max_num_batched_tokens
        if budget is not None and budget < self.max_num_seqs:
            raise Contradiction(
                ("max_num_batched_tokens", "max_num_seqs"),
                f"max_num_batched_tokens ({budget}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence has a token in every step",
            )
        if self.max_long_partial_prefills > self.max_num_partial_prefills:
            raise Contradiction(
                ("max_long_partial_prefills", "max_num_partial_prefills"),
                f"max_long_partial_prefills ({self.max_long_partial_prefills}) must not exceed "
                f"max_num_partial_prefills ({self.max_num_partial_prefills}), which counts them",
            )
        if self.max_step_ms is not None and not self.enable_chunked_prefill:
            raise Contradiction(
                ("max_step_ms", "enable_chunked_prefill"),
                f"max_step_ms ({self.max_step_ms:g}) needs enable_chunked_prefill: a prompt in one "
                "piece takes as long as it takes",
            )

    def long_prompt_tokens(self, max_model_len: int) -> int:
        """A prompt of more tokens is long, for sequences of at most max_model_len tokens."""
        return self.long_prefill_token_threshold or max_model_len // 25

    def token_budget(self, max_model_len: int) -> int:
        """Most tokens in one step, for a model whose sequences have at most max_model_len tokens.

        Raises:
            Contradiction: without chunked prefill a prompt of max_model_len must fit in one step.
        """
        if self.max_num_batched_tokens is None:
            least = DEFAULT_TOKEN_BUDGET if self.enable_chunked_prefill else max_model_len
            return max(least, self.max_num_seqs)
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise Contradiction(
                ("max_num_batched_tokens", "max_model_len", "enable_chunked_prefill"),
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({max_model_len}) when enable_chunked_prefill is false",
            )
        return self.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class GraphOptimizationConfig:
    """How the layers of the model are run."""

    use_step_program: bool = option(
        True,
        help="Run a whole step of the model in one call, as a captured graph does on a GPU. False "
        "calls the layers one by one: slower, with the same tokens.",
    )


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """What of the machine is used."""

    num_threads: int | None = option(
        None,
        minimum=1,
        maximum=1024,
        help="CPU threads that compute. Default: the processors of this process, cut to the CPU "
        "time of its container.",
    )
    tensor_parallel_size: int = option(
        1,
        minimum=1,
        maximum=1024,
        help="Ranks that --dry-run divides the model over. A server computes all of it in one "
        "process, whatever this says.",
    )

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP server."""

    host: str = option("0.0.0.0", help="Address to listen on.")
    port: int = option(8000, minimum=0, maximum=65535, help="Port; 0 takes a free one.")
    api_key: tuple[str, ...] = option(
        (),
        secret=True,
        separator=",",
        help="Keys, one of which a request must carry; also from FD_API_KEY (comma-separated).",
    )
    max_concurrency: int = option(
        512, minimum=1, help="Most requests in the server; further ones are answered with 429."
    )
    trust_request_chat_template: bool = option(
        False, help="Run the chat templates that requests bring with them."
    )
    metrics_prefix: Literal["fdspec", "fastdeploy"] = option(
        "fdspec", help="Prefix of the metrics' names."
    )
    timeout_graceful_shutdown: int = option(
        5, minimum=0, help="Seconds that running requests get to finish when the server stops."
    )
    timeout_keep_alive: int = option(
        5, minimum=1, help="Seconds after which an idle HTTP connection is closed."
    )
    engine_start_timeout: int = option(
        600, minimum=1, help="Seconds that the engine may take to load the model."
    )
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = option(
        "info", help="Log level of the HTTP server; info logs every request."
    )

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that a server or an offline engine is configured by.

    Raises:
        Contradiction: a value is out of range, or two values do not fit together.
    """

    model: ModelConfig
    rope_scaling: RopeScalingConfig = dataclasses.field(default_factory=RopeScalingConfig)
    cache: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig | None = None
    graph_optimization: GraphOptimizationConfig = dataclasses.field(
        default_factory=GraphOptimizationConfig
    )
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    topic: TopicConfig = dataclasses.field(default_factory=TopicConfig)
    handoff: HandoffConfig = dataclasses.field(default_factory=HandoffConfig)
    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        if self.model.max_model_len is not None:
            self.scheduler.token_budget(self.model.max_model_len)
