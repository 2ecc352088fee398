# SPDX-License-Identifier: Apache-2.0
"""OpenAI's predicted outputs: the request field `prediction` as token ids.

Called by the routes before anything is submitted. What the tokens are good for is the proposer's
business; an answer does not depend on them.
"""

from __future__ import annotations

from dataclasses import replace

from fdspec.core import SamplingParams
from fdspec.entrypoints.openai.errors import bad_request
from fdspec.entrypoints.openai.params import Limits
from fdspec.entrypoints.openai.prompts import encode, text_part
from fdspec.entrypoints.openai.protocol import GenerationRequest
from fdspec.tokenizer import Tokenizer


async def with_prediction(
    params: SamplingParams, request: GenerationRequest, tokenizer: Tokenizer, limits: Limits
) -> SamplingParams:
    """The parameters with the tokens of the request's prediction, if it has one.

    Where the server does not speculate a prediction is checked and has no effect.

    Raises:
        ApiError: 400; `param` begins with `prediction`.
    """
    prediction = request.prediction
    if prediction is None:
        return params
    if prediction.type != "content":
        raise bad_request(
            "prediction.type", f'prediction.type must be "content", got {prediction.type!r}'
        )
    content = prediction.content
    if isinstance(content, list):
        content = "".join(
            text_part(f"prediction.content[{index}]", part) for index, part in enumerate(content)
        )
    if len(content) > limits.max_prompt_bytes:
        raise bad_request(
            "prediction.content",
            f"prediction.content has {len(content)} characters, which is more than the "
            f"{limits.max_model_len} tokens of this model's context can hold",
        )
    if limits.num_speculative_tokens == 0 or not content:
        return params
    tokens = await encode(content, tokenizer, add_special_tokens=False)
    return replace(params, prediction=tuple(tokens))
