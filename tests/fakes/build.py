# SPDX-License-Identifier: Apache-2.0
"""An engine on a FakeRunner, and requests for it."""

from __future__ import annotations

import random

from fdspec.core import SamplingParams, Submit
from fdspec.core.protocols import KVHandoff, Proposer
from fdspec.engine.engine import Engine
from fdspec.engine.no_handoff import NoHandoff
from fdspec.engine.stats import EngineMonitor
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.prompt_rows import PrefillLimits
from fdspec.scheduler.swapping import Swapping
from fdspec.scheduler.topic import InProcessTopic
from fdspec.spec_decode.verifier import SpeculativeVerifier
from tests.fakes.exactness import Setting
from tests.fakes.runner import FakeRunner

VOCAB_SIZE = 48
EOS_ID = 1
BLOCK_SIZE = 4
MAX_MODEL_LEN = 160
TOKEN_BYTES = [b"", b""] + [
    bytes([97 + i % 26]) * (1 + i // 26) + (b" " if i % 7 == 0 else b"")
    for i in range(VOCAB_SIZE - 2)
]
"""Ids 0 and 1 are special; the others are letters, some doubled, some with a blank."""


def make_fake_engine(
    proposer: Proposer,
    setting: Setting,
    *,
    habit: float = 0.0,
    verify_strategy: str = "target_match",
    accept_policy: str = "normal",
    max_draft_rows: int = 64,
    prefill: PrefillLimits | None = None,
    runner: FakeRunner | None = None,
    handoff: KVHandoff | None = None,
    hands_over: bool = False,
    opens_early: bool = False,
) -> Engine:
    """An engine whose model is a FakeRunner."""
    pool = BlockPool(setting.num_blocks, BLOCK_SIZE, prefix_caching=setting.prefix_caching)
    scheduler = BatchScheduler(
        pool,
        vocab_size=VOCAB_SIZE,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        max_draft_rows=max_draft_rows,
        prefill=prefill or PrefillLimits(),
        swapping=Swapping(setting.num_swap_slots, 0.0),
        hands_over=hands_over,
        opens_early=opens_early,
    )
    verifier = SpeculativeVerifier(
        vocab_size=VOCAB_SIZE,
        eos_ids=(EOS_ID,),
        token_bytes=TOKEN_BYTES,
        max_model_len=MAX_MODEL_LEN,
        verify_strategy=verify_strategy,
        accept_policy=accept_policy,
    )
    handoff = handoff or NoHandoff()
    return Engine(
        InProcessTopic(),
        scheduler,
        proposer,
        runner=runner or make_fake_runner(setting, habit=habit),
        verifier=verifier,
        monitor=EngineMonitor(scheduler, pool, handoff),
        handoff=handoff,
    )


def make_fake_runner(setting: Setting, *, habit: float = 0.0) -> FakeRunner:
    """The model of such an engine."""
    return FakeRunner(setting.num_blocks, BLOCK_SIZE, vocab_size=VOCAB_SIZE, habit=habit)


def make_submits(params: dict[str, SamplingParams], *, seed: int = 0) -> list[Submit]:
    """A request for each set of parameters, with prompts of all lengths.

    Of every six in turn, the first ones begin as the ones before them did, for 0 to 18 tokens.
    """
    source = random.Random(seed)
    submits: list[Submit] = []
    for index, (name, values) in enumerate(params.items()):
        start = submits[index - 6].prompt[: 6 * (index % 4)] if index >= 6 else ()
        length = (1, 3, BLOCK_SIZE, 17, 33, 50)[index % 6]
        rest = (source.randrange(2, VOCAB_SIZE) for _ in range(length - len(start)))
        submits.append(Submit(name, (*start, *rest), values))
    return submits
