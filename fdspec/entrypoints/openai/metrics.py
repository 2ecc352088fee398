# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of one server: FastDeploy's names; speculation by position and source.

Latencies are measured here, in the frontend; sequences and blocks come from EngineStats. Counters
are plain integers that are read at scrape time, so that a token costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fdspec.core import DraftStats
from fdspec.entrypoints.openai.draft_report import DraftCounts, ratio
from fdspec.scheduler.broker.values import QUEUES, ROLES, TopicStats
from fdspec.scheduler.topic import EngineStats, Ready

_FIRST_TOKEN_BUCKETS_S = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
_TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)
_REQUEST_BUCKETS_S = (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """Everything that /metrics shows.

    Args:
        prefix: first part of every name, `fdspec` or `fastdeploy`.

    Attributes:
        stats: the engine's latest statistics; the owner replaces it.
        topic: the shared topic's latest statistics, likewise; None if there is none.
    """

    def __init__(self, prefix: str) -> None:
        self.stats = EngineStats()
        self.topic: TopicStats | None = None
        self._prefix = prefix
        self._ready: Ready | None = None
        self._num_requests = 0
        self._num_finished = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generated_tokens = 0
        self._num_drafts = 0
        self._num_emitted = 0
        self._drafts = DraftCounts()
        self._registry = CollectorRegistry(auto_describe=False)
        self._first_token_s = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN_BUCKETS_S
        )
        self._token_s = self._histogram(
            "time_per_output_token_seconds",
            "Between the arrivals of a step's tokens, for each token",
            _TOKEN_BUCKETS_S,
        )
        self._request_s = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token", _REQUEST_BUCKETS_S
        )
        self._prompt_size = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request", _COUNT_BUCKETS
        )
        self._output_size = self._histogram(
            "request_generation_tokens", "Output tokens of a choice", _COUNT_BUCKETS
        )
        self._max_tokens = self._histogram(
            "request_params_max_tokens", "max_tokens of a request", _COUNT_BUCKETS
        )
        self._registry.register(_Counters(self))

    def engine_ready(self, ready: Ready) -> None:
        """Take the engine's sizes."""
        self._ready = ready

    def request_started(self, num_prompt: int, max_tokens: int) -> None:
        """A prompt was accepted and goes to the engine."""
        self._num_requests += 1
        self._num_prompt_tokens += num_prompt
        self._prompt_size.observe(num_prompt)
        self._max_tokens.observe(max_tokens)

    def first_token(self, elapsed_s: float, num_tokens: int, num_cached: int) -> None:
        """A choice's first tokens arrived."""
        self._first_token_s.observe(elapsed_s)
        self._num_generated_tokens += num_tokens
        self._num_cached_tokens += num_cached

    def further_tokens(self, gap_s: float, num_tokens: int) -> None:
        """A later step's tokens of a choice arrived, gap_s after those before them."""
        self._token_s.observe(gap_s / num_tokens)
        self._num_generated_tokens += num_tokens

    def drafted(self, draft: DraftStats, num_tokens: int) -> None:
        """A step verified a draft and brought num_tokens."""
        self._num_drafts += 1
        self._num_emitted += num_tokens
        self._drafts.add(draft)

    def choice_ended(self, reason: str, elapsed_s: float, num_tokens: int) -> None:
        """A choice ended: `stop`, `length`, `abort` or `error`."""
        self._num_finished[reason] += 1
        if reason in ("stop", "length"):
            self._request_s.observe(elapsed_s)
            self._output_size.observe(num_tokens)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        text: bytes = generate_latest(self._registry)
        return text

    def families(self) -> Iterator[Metric]:
        """Counters and gauges. Does not modify."""
        yield from self._request_families()
        yield from self._engine_families()
        yield from self._draft_families()
        yield from self._handoff_families()
        yield from self._topic_families()

    def _request_families(self) -> Iterator[Metric]:
        yield self._counter("requests_number", "Prompts sent to the engine", self._num_requests)
        finished = CounterMetricFamily(
            f"{self._prefix}:request_success", "Choices that ended", labels=["finished_reason"]
        )
        for reason, count in self._num_finished.items():
            finished.add_metric([reason], count)
        yield finished
        yield self._counter("prompt_tokens", "Prompt tokens", self._num_prompt_tokens)
        yield self._counter("generation_tokens", "Output tokens", self._num_generated_tokens)
        yield self._counter(
            "prefix_cache_token_num",
            "Prompt tokens that were found in the cache",
            self._num_cached_tokens,
        )

    def _engine_families(self) -> Iterator[Metric]:
        stats = self.stats
        yield self._gauge("num_requests_running", "Sequences in the batch", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait", stats.num_waiting)
        yield self._counter(
            "request_preempted", "Times a sequence lost its blocks", stats.num_preempted_total
        )
        yield self._counter(
            "request_swapped",
            "Of those, times its keys and values were swapped out",
            stats.num_swapped_total,
        )
        yield self._counter("engine_steps", "Steps of the engine", stats.num_steps_total)
        yield self._counter("engine_rows", "Rows that steps computed", stats.num_rows_total)
        yield self._counter(
            "prefix_cache_queries",
            "Prompt tokens looked up in the cache, once for each choice",
            stats.num_prefix_queries_total,
        )
        yield self._counter(
            "prefix_cache_hits", "Of those, tokens found", stats.num_prefix_hits_total
        )
        yield self._gauge(
            "hit_token_rate",
            "Share of looked up prompt tokens that were found, 0..1",
            ratio(stats.num_prefix_hits_total, stats.num_prefix_queries_total),
        )
        ready = self._ready
        if ready is None:
            return
        # A frontend's statistics are sums over its workers.
        num_blocks = stats.num_blocks or ready.num_blocks
        num_free = stats.num_free_blocks if stats.num_blocks else num_blocks
        yield self._gauge("batch_size", "Sequences in the batch", stats.num_running)
        yield self._gauge("max_batch_size", "Most sequences in a batch", ready.max_num_seqs)
        yield self._gauge(
            "available_batch_size",
            "Sequences that the batch can still take",
            max(ready.max_num_seqs - stats.num_running, 0),
        )
        yield self._gauge("max_gpu_block_num", "KV blocks", num_blocks)
        yield self._gauge("available_gpu_block_num", "KV blocks that can be had", num_free)
        num_empty = stats.num_empty_blocks if stats.num_blocks else num_blocks
        yield self._gauge("free_gpu_block_num", "KV blocks that hold nothing", num_empty)
        yield self._gauge(
            "gpu_cache_usage_perc",
            "Share of KV blocks in use, 0..1",
            ratio(num_blocks - num_free, num_blocks),
        )
        yield self._gauge(
            "available_gpu_resource", "Share of KV blocks free", ratio(num_free, num_blocks)
        )
        yield self._cache_info(ready)

    def _cache_info(self, ready: Ready) -> Metric:
        labels = {
            "block_size": str(ready.block_size),
            "num_gpu_blocks": str(ready.num_blocks),
            "max_model_len": str(ready.max_model_len),
            **dict(ready.details),
        }
        family = GaugeMetricFamily(
            f"{self._prefix}:cache_config_info", "The KV cache; always 1", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1)
        return family

    def _draft_families(self) -> Iterator[Metric]:
        counters = self._drafts
        num_drafted, num_accepted = counters.num_drafted, counters.num_accepted
        name = "spec_decode_"
        yield self._counter(f"{name}num_drafts", "Drafts verified", self._num_drafts)
        yield self._counter(f"{name}num_draft_tokens", "Draft tokens verified", num_drafted)
        yield self._counter(f"{name}num_accepted_tokens", "Draft tokens accepted", num_accepted)
        yield self._counter(
            f"{name}num_emitted_tokens",
            "Output tokens of steps that verified a draft",
            self._num_emitted,
        )
        yield self._gauge(
            f"{name}draft_acceptance_rate",
            "Share of draft tokens that were accepted",
            ratio(num_accepted, num_drafted),
        )
        for label, counts in (("accepted", counters.accepted), ("draft", counters.drafted)):
            family = CounterMetricFamily(
                f"{self._prefix}:{name}num_{label}_tokens_per_pos",
                f"{label.capitalize()} tokens by position in the draft, from 0",
                labels=["position"],
            )
            for position, count in enumerate(counts):
                family.add_metric([str(position)], count)
            yield family
        for index, (label, verb) in enumerate((("draft", "verified"), ("accepted", "accepted"))):
            family = CounterMetricFamily(
                f"{self._prefix}:{name}num_{label}_tokens_per_source",
                f"Draft tokens {verb}, by the proposer that they came from",
                labels=["source"],
            )
            for source, pair in sorted(counters.by_source.items()):
                family.add_metric([source], pair[index])
            yield family

    def _handoff_families(self) -> Iterator[Metric]:
        """Of this server's engine; only prefill and decode servers hand anything over."""
        stats = self.stats
        yield self._gauge(
            "kv_handoffs_open",
            "Offers that may still be read, or KV caches being read",
            stats.num_handoffs_open,
        )
        for name, text, value in (
            ("offered", "KV caches handed over by this server", stats.num_offered_total),
            ("loaded", "KV caches taken over by this server", stats.num_loaded_total),
            ("failed", "Of those offered, computed here instead", stats.num_load_failures_total),
        ):
            yield self._counter(f"kv_handoffs_{name}", text, value)
        yield self._counter(
            "kv_handoff_bytes", "Bytes of KV caches taken over", stats.num_loaded_bytes_total
        )
        yield self._counter(
            "kv_handoff_seconds",
            "Seconds that taking them over took, together",
            stats.load_ms_total / 1000,
        )

    def _topic_families(self) -> Iterator[Metric]:
        topic = self.topic
        if topic is None:
            return
        waiting = GaugeMetricFamily(
            f"{self._prefix}:topic_requests_waiting", "Requests at the broker", labels=["queue"]
        )
        workers = GaugeMetricFamily(
            f"{self._prefix}:topic_workers", "Workers alive on the topic", labels=["role"]
        )
        roles = [worker.card.role for worker in topic.workers]
        for queue, count in zip(QUEUES, topic.num_waiting, strict=True):
            waiting.add_metric([queue], count)
        for role in ROLES:
            workers.add_metric([role], roles.count(role))
        yield waiting
        yield workers
        yield self._gauge("topic_requests_leased", "Requests that workers hold", topic.num_leased)
        yield self._gauge("topic_frontends", "Frontends on the topic", topic.num_frontends)
        yield self._gauge(
            "topic_dead_letters", "Requests given up after failures", topic.num_dead_letters
        )

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return CounterMetricFamily(f"{self._prefix}:{name}", text, value=value)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"{self._prefix}:{name}", text, value=value)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{self._prefix}:{name}", text, buckets=buckets, registry=self._registry)


class _Counters:
    """Lets the registry read a server's counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()
