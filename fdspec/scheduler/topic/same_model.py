# SPDX-License-Identifier: Apache-2.0
"""Whether two workers of a topic serve the same model in the same way, with the same tokens."""

from __future__ import annotations

from fdspec.core import ConfigError
from fdspec.scheduler.broker.values import WorkerCard
from fdspec.scheduler.topic.codec import CodecError, decode
from fdspec.scheduler.topic.messages import Ready

_DETAILS = (
    "architecture",
    "checkpoint",
    "quantization",
    "kv_cache_dtype",
    "verify_strategy",
    "rope",
)
# Of workers that hand KV caches over.
_CACHE_DETAILS = (
    "kv_numerics",
    "kv_num_layers",
    "kv_num_kv_heads",
    "kv_head_dim",
    "kv_block_size",
    "kv_drafting",
)


def check_same_model(mine: Ready, other: WorkerCard) -> None:
    """Compare this worker with another one's card.

    Raises:
        ConfigError: a request could not move between them without a change of its tokens.
    """
    try:
        theirs = decode(other.details)
    except CodecError as error:
        raise ConfigError(
            f"the worker {other.name} of this topic cannot be read: {error}"
        ) from None
    assert isinstance(theirs, Ready)
    facts: dict[str, tuple[object, object]] = {
        "vocab_size": (mine.vocab_size, theirs.vocab_size),
        "max_model_len": (mine.max_model_len, theirs.max_model_len),
    }
    my_details, their_details = dict(mine.details), dict(theirs.details)
    for name in _DETAILS:
        facts[name] = (my_details.get(name), their_details.get(name))
    for name in _CACHE_DETAILS:
        if name in my_details and name in their_details:
            facts[name.removeprefix("kv_")] = (my_details[name], their_details[name])
    for name, (my_value, their_value) in facts.items():
        if my_value != their_value:
            raise ConfigError(
                f"{name} is {my_value} here but {their_value} at the worker {other.name}, which is "
                "on the same topic: requests that move between them would change; make them equal, "
                "or choose another scheduler_topic"
            )
