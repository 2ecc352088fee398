# SPDX-License-Identifier: Apache-2.0
"""Admission: whether a request can ever be served here, and if not, why, in numbers.

Pure functions for the batch scheduler. Whether a request fits right now is decided in `plan`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fdspec.core import Submit


def reason_to_refuse(
    submit: Submit, *, max_model_len: int, vocab_size: int, num_blocks: int, block_size: int
) -> str | None:
    """Why a request can never be served, for the client; None if it can.

    Args:
        submit: the request.
        max_model_len: most tokens of a sequence, prompt and output together.
        vocab_size: ids 0 .. vocab_size - 1 exist.
        num_blocks: blocks of the whole KV cache.
        block_size: tokens in a block.
    """
    num_prompt, max_tokens = len(submit.prompt), submit.params.max_tokens
    if max_tokens is None or submit.params.seed is None:
        return "max_tokens and seed must be set before a request is submitted"
    if num_prompt == 0:
        return "the prompt is empty; at least one token is needed"
    if max_tokens < 1:
        return f"max_tokens must be at least 1, got {max_tokens}"
    for what, tokens in (("prompt", submit.prompt), *_outputs_so_far(submit)):
        lowest, highest = min(tokens), max(tokens)
        if lowest < 0 or highest >= vocab_size:
            wrong = lowest if lowest < 0 else highest
            return f"{what} token id {wrong} is outside the vocabulary 0..{vocab_size - 1}"
        if what != "prompt" and len(tokens) >= max_tokens:
            return f"{len(tokens)} output tokens are there, so max_tokens {max_tokens} is reached"
    if submit.emitted and len(submit.emitted) != submit.params.n:
        return f"outputs of {len(submit.emitted)} choices are given, but n is {submit.params.n}"
    total = num_prompt + max_tokens
    numbers = f"{num_prompt} prompt tokens + max_tokens {max_tokens} = {total} tokens"
    if total > max_model_len:
        return f"{numbers}, but this model takes at most {max_model_len} (max_model_len)"
    # The last output token is never an input, so it needs no slot.
    needed = -(-(total - 1) // block_size)
    if needed > num_blocks:
        return (
            f"{numbers} need {needed} KV blocks of {block_size} tokens, but the server has "
            f"{num_blocks}; ask for fewer tokens or give the server more memory "
            "(gpu_memory_utilization, num_gpu_blocks_override)"
        )
    return None


def _outputs_so_far(submit: Submit) -> Iterator[tuple[str, tuple[int, ...]]]:
    return (("output", tokens) for tokens in submit.emitted if tokens)
