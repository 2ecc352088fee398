# SPDX-License-Identifier: Apache-2.0
"""What an engine tells its clients besides token events: that it is ready, its state, its end.

Plain frozen dataclasses, sent by `fdspec.scheduler.topic.codec`; engines publish them and the
frontend reads them. Commands and token events themselves are in `fdspec.core.command`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fdspec.core import TokenEvent


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine has loaded its model and takes commands; sent once, before anything else.

    Attributes:
        vocab_size: ids that the model knows: 0..vocab_size - 1.
        max_model_len: most tokens of a sequence, prompt and output together.
        num_blocks: KV blocks of the pool.
        block_size: tokens in a block.
        max_num_seqs: most sequences in one step.
        speculative_method: name of the proposer, or None when speculation is off.
        num_speculative_tokens: most draft tokens a step and sequence.
        details: further facts for logs and the metric `cache_config_info`.
        speculative_methods: proposers that a request may ask for.
        kv_endpoints: ways to the KV cache, of an engine that hands it over.
        worker_id: of the engine on a shared topic; empty on one of its own.
    """

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    speculative_method: str | None = None
    num_speculative_tokens: int = 0
    details: tuple[tuple[str, str], ...] = ()
    speculative_methods: tuple[str, ...] = ()
    kv_endpoints: tuple[str, ...] = ()
    worker_id: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """State of the engine now (gauges), and since its start (names ending in `_total`).

    Attributes:
        num_running: sequences that hold blocks.
        num_waiting: sequences that wait for admission.
        num_blocks: KV blocks of the pool.
        num_free_blocks: of those, how many can be given out.
        num_empty_blocks: of those, how many hold no cached tokens.
        num_preempted_total: times that a sequence lost its blocks.
        num_swapped_total: of those, times that its keys and values were kept outside the cache.
        num_steps_total: engine steps that computed something.
        num_rows_total: rows (prompt, decode and draft tokens) computed.
        num_drafts_total: drafts that were verified.
        num_draft_tokens_total: draft tokens that were verified.
        num_accepted_tokens_total: draft tokens that were accepted and kept.
        num_prefix_queries_total: prompt tokens that were looked up in the prefix cache.
        num_prefix_hits_total: of those, tokens that were found.
        num_handoffs_open: offers of a prefill engine that may still be read, or loads of a decode
            engine that have not ended.
        num_offered_total: sequences handed over to decode engines.
        num_loaded_total: sequences taken over from prefill engines.
        num_load_failures_total: sequences that were offered, and had to be computed here.
        num_loaded_bytes_total: bytes of KV cache read from other engines.
        load_ms_total: milliseconds that this took, over all sequences together.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_empty_blocks: int = 0
    num_preempted_total: int = 0
    num_swapped_total: int = 0
    num_steps_total: int = 0
    num_rows_total: int = 0
    num_drafts_total: int = 0
    num_draft_tokens_total: int = 0
    num_accepted_tokens_total: int = 0
    num_prefix_queries_total: int = 0
    num_prefix_hits_total: int = 0
    num_handoffs_open: int = 0
    num_offered_total: int = 0
    num_loaded_total: int = 0
    num_load_failures_total: int = 0
    num_loaded_bytes_total: int = 0
    load_ms_total: float = 0.0


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine cannot go on; its last message.

    Attributes:
        message: what happened, for people.
    """

    message: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """The answer to a ClearCache.

    Attributes:
        request_id: that of the command.
        num_blocks: blocks of the KV cache that nothing is found in any more.
    """

    request_id: str
    num_blocks: int


Status = Ready | EngineStats | Fatal | Cleared
EngineMessage = tuple[TokenEvent, ...] | Status
"""Everything that travels from an engine to a client; a tuple holds the events of one step."""
