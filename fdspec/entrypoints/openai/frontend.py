# SPDX-License-Identifier: Apache-2.0
"""Frontend: what all routes of one server share. Built once, when the engine is ready.

Owns no request; made by `api_server`, or by tests around a fake engine.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field

from fdspec.core import ConfigError
from fdspec.entrypoints.openai.errors import ApiError
from fdspec.entrypoints.openai.logprobs import TokenNames
from fdspec.entrypoints.openai.metrics import Metrics
from fdspec.entrypoints.openai.params import Limits
from fdspec.scheduler.broker.values import TopicStats
from fdspec.scheduler.topic import EngineStats, TopicClient
from fdspec.tokenizer import Tokenizer

_SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """What a server's owner decides.

    Attributes:
        model_names: names of the model in the API; the first one is reported.
        api_keys: a request must carry one of them; empty lets everybody in.
        max_concurrency: most generation requests at once; further ones get 429.
        max_logprobs: most logprobs for a token; -1 is the vocabulary.
        metrics_prefix: first part of the metrics' names.
        seed: start value for keys of requests without a seed; None draws fresh ones.
        trust_request_chat_template: run Jinja templates that come with requests.
    """

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    max_concurrency: int = 512
    max_logprobs: int = 20
    metrics_prefix: str = "fdspec"
    seed: int | None = None
    trust_request_chat_template: bool = False


class Frontend:
    """Engine, tokenizer, limits and counters of one server.

    Args:
        client: connection to an engine that is ready.
        tokenizer: of the model that the engine serves.
        options: the owner's choices.

    Attributes:
        num_running: generation requests being answered.
        is_paused: new generation requests are refused.

    Raises:
        ConfigError: tokenizer and model do not belong together.
    """

    def __init__(self, client: TopicClient, tokenizer: Tokenizer, options: FrontendOptions) -> None:
        ready = client.ready
        assert ready is not None, "the engine is not ready"
        if tokenizer.vocab_size > ready.vocab_size:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, the model only "
                f"{ready.vocab_size}; set tokenizer to the one that belongs to the model"
            )
        self.client = client
        self.tokenizer = tokenizer
        self.options = options
        self.token_names = TokenNames(tokenizer)
        self.num_running = 0
        self.is_paused = False
        self.limits = Limits(
            vocab_size=ready.vocab_size,
            max_model_len=ready.max_model_len,
            max_cached_tokens=ready.num_blocks * ready.block_size,
            max_prompt_bytes=ready.max_model_len * max(map(len, tokenizer.token_bytes(False))),
            max_logprobs=options.max_logprobs,
            num_speculative_tokens=ready.num_speculative_tokens,
            speculative_methods=ready.speculative_methods,
        )
        self.metrics = Metrics(options.metrics_prefix)
        self.metrics.engine_ready(ready)
        self._seeds = random.Random(options.seed) if options.seed is not None else None
        client.on_stats = self._take_stats
        client.on_topic = self._take_topic

    @property
    def speculates(self) -> bool:
        """True if the server drafts tokens."""
        return self.limits.num_speculative_tokens > 0

    def fresh_seed(self) -> int:
        """A key for the noise of a request that brought none."""
        if self._seeds is None:
            return secrets.randbits(_SEED_BITS)
        return self._seeds.getrandbits(_SEED_BITS)

    def check_model(self, name: str | None) -> str:
        """The model's name for the response.

        Raises:
            ApiError: 404 if the name is not one of the server's.
        """
        names = self.options.model_names
        if name is None:
            return names[0]
        if name not in names:
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; this server has {', '.join(names)}",
                param="model",
                code="model_not_found",
            )
        return name

    def _take_stats(self, stats: EngineStats) -> None:
        self.metrics.stats = stats

    def _take_topic(self, stats: TopicStats) -> None:
        self.metrics.topic = stats
