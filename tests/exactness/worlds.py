# SPDX-License-Identifier: Apache-2.0
"""Real models to compare on: what they are asked, and how engines over them are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fdspec.core import SamplingParams, Submit
from fdspec.core.protocols import KVHandoff, Proposer
from fdspec.engine.decode_handoff import DecodeHandoff
from fdspec.engine.engine import Engine
from fdspec.engine.kv_layout import kv_layout
from fdspec.engine.no_handoff import NoHandoff
from fdspec.engine.prefill_handoff import LayerCounter, PrefillHandoff
from fdspec.engine.stats import EngineMonitor
from fdspec.kv.block_pool import BlockPool
from fdspec.kv.cache import ExtraLayers, KVCache
from fdspec.models import ModelOptions, load_model
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.swapping import Swapping
from fdspec.scheduler.topic import InProcessTopic
from fdspec.spec_decode.verifier import SpeculativeVerifier
from fdspec.tokenizer import Tokenizer, load_tokenizer
from fdspec.transfer import (
    HandoffServer,
    HandoffSink,
    KVLayout,
    PullLimits,
    ServerOptions,
    SinkOptions,
    TransportOptions,
)
from fdspec.worker.model_runner import ModelRunner, kv_cache_layout
from tests.fakes.exactness import Results, Setting, reference

MAX_MODEL_LEN = 256
BLOCK_SIZE = 16
TINY = {"llama": "wint4_g32", "qwen2": "wint8", "qwen3": "none", "ernie_moe": "wint4"}
REAL = {"smollm2": "bfloat16", "smollm2-int8": "int8"}
# Of the quick tests; experts have one of their own.
WORLDS = ["smollm2", "llama", "qwen2", "qwen3"]
ALL_WORLDS = [*REAL, *TINY]
TEXTS = (
    "The seven days of the week are Monday,",
    "ha ha ha ha ha ha ha ha ha ha ha ha ha ha",
    "Once",
    "def add(a, b):\n    return a + b\n\n\ndef add_three(a, b, c):\n    return",
    "List: apple, pear, plum, apple, pear, plum, apple,",
    "In the beginning of the year the river was high, and the old bridge, which had stood for two "
    "hundred years, was closed to carts. In the middle of the year the river was low, and the",
)


@dataclass
class World:
    """One model, the requests it gets, and plain decoding's answers to them.

    Attributes:
        model: shared by all engines; engines have KV caches of their own.
        token_bytes: byte string of every token id.
        eos_id: token that ends an output.
        submits: the requests.
        expected: plain decoding, one sequence at a time, prompts whole.
        endless: tokens of the same without stops, for drafters that know the future.
    """

    model: LlamaFamilyModel
    token_bytes: list[bytes]
    eos_id: int
    submits: list[Submit]
    kv_cache_dtype: str
    expected: Results = field(init=False)
    endless: dict[tuple[str, int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        roomy = Setting(max_num_seqs=1, max_num_batched_tokens=MAX_MODEL_LEN, num_blocks=32)
        self.expected = reference(self.make_engine, self.submits, roomy)
        endless = reference(self.make_engine, self.submits, roomy, endless=True)
        self.endless = {key: result.tokens for key, result in endless.items()}

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self.model.config.vocab_size

    def make_engine(self, proposer: Proposer, setting: Setting) -> Engine:
        """An engine over the model with a fresh KV cache."""
        return self.engine_on(self.make_runner(setting), proposer, setting)

    def make_runner(self, setting: Setting, extra: Sequence[ExtraLayers] = ()) -> ModelRunner:
        """The model with a fresh KV cache, which has room for more layers."""
        layout = kv_cache_layout(
            self.model.config, block_size=BLOCK_SIZE, dtype=self.kv_cache_dtype, extra=extra
        )
        return ModelRunner(
            self.model,
            num_blocks=setting.num_blocks,
            block_size=BLOCK_SIZE,
            kv_cache_dtype=self.kv_cache_dtype,
            swap_bytes=setting.num_swap_slots * layout.block_bytes,
            extra=extra,
        )

    def engine_on(
        self,
        runner: ModelRunner,
        proposer: Proposer,
        setting: Setting,
        *,
        handoff: KVHandoff | None = None,
        hands_over: bool = False,
        opens_early: bool = False,
    ) -> Engine:
        """An engine that runs a model runner of this world's."""
        pool = BlockPool(setting.num_blocks, BLOCK_SIZE, prefix_caching=setting.prefix_caching)
        scheduler = BatchScheduler(
            pool,
            vocab_size=self.vocab_size,
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            swapping=Swapping(setting.num_swap_slots, 0.0),
            hands_over=hands_over,
            opens_early=opens_early,
        )
        verifier = SpeculativeVerifier(
            vocab_size=self.vocab_size,
            eos_ids=(self.eos_id,),
            token_bytes=self.token_bytes,
            max_model_len=MAX_MODEL_LEN,
        )
        handoff = handoff or NoHandoff()
        return Engine(
            InProcessTopic(),
            scheduler,
            proposer,
            runner=runner,
            verifier=verifier,
            monitor=EngineMonitor(scheduler, pool, handoff),
            handoff=handoff,
        )


def prefill_handoff(folder: Path, runner: ModelRunner) -> PrefillHandoff:
    """The end of an engine that hands over, by any transport; sockets are made in the folder."""
    cache = runner.cache
    layers = LayerCounter(lambda: runner.num_layers_appended, len(cache.layers))
    options = ServerOptions(TransportOptions(folder))
    return PrefillHandoff(
        lambda free: HandoffServer(cache.memory(), _layout_of(cache), options, free),
        block_size=BLOCK_SIZE,
        layers=layers,
    )


def decode_handoff(transport: str, cache: KVCache) -> DecodeHandoff:
    """The end of an engine that takes over, by one transport."""
    # Nobody dies here, so that only a busy machine makes a pull slow.
    limits = PullLimits(deadline_s=300.0, connect_s=60.0, silence_s=120.0, read_s=120.0)
    options = SinkOptions(TransportOptions(Path("/nowhere")), (transport,), limits)
    return DecodeHandoff(HandoffSink(cache.memory(), _layout_of(cache), options))


def _layout_of(cache: KVCache) -> KVLayout:
    return kv_layout(cache, checkpoint="test", quantization="", rope="")


def real_world(
    path: Path, params: dict[str, SamplingParams], *, kv_cache_dtype: str = "bfloat16"
) -> World:
    """The demo model as it is stored, with 4-bit weights."""
    tokenizer: Tokenizer = load_tokenizer(path)
    submits = [
        Submit(name, tuple(tokenizer.encode(TEXTS[index % len(TEXTS)])), values)
        for index, (name, values) in enumerate(params.items())
    ]
    model = load_model(path, ModelOptions(quantization=None, max_model_len=MAX_MODEL_LEN))
    eos_id = next(iter(tokenizer.eos_ids))
    return World(model, tokenizer.token_bytes(), eos_id, submits, kv_cache_dtype)


def tiny_world(
    folder: Path,
    params: dict[str, SamplingParams],
    *,
    quantization: str,
    kv_cache_dtype: str = "float32",
) -> World:
    """A random checkpoint; token i stands for a letter."""
    model = load_model(folder, ModelOptions(quantization=quantization, max_model_len=MAX_MODEL_LEN))
    size = model.config.vocab_size
    token_bytes = [bytes([97 + index % 26]) for index in range(size)]
    submits = [
        Submit(name, tuple((7 * i * i + 3 * (index % 6)) % 300 + 5 for i in range(length)), values)
        for index, (name, values) in enumerate(params.items())
        for length in [(1, 5, 16, 17, 40, 90)[index % 6]]
    ]
    return World(model, token_bytes, 2, submits, kv_cache_dtype)
