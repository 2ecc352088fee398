# SPDX-License-Identifier: Apache-2.0
"""Runs requests against an OpenAI-compatible server and measures when their tokens arrive."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from benchmarks.datasets import Prompt
from benchmarks.http_client import HTTPError, get_text, post_events, post_json
from benchmarks.report import percentile

CHAT_ENDPOINT = "/v1/chat/completions"


@dataclass(frozen=True)
class Server:
    """Where requests go.

    Attributes:
        base_url: such as http://127.0.0.1:8000.
        model: name that requests use.
        endpoint: /v1/completions or /v1/chat/completions.
        extra_body: further fields of every request, such as temperature.
        headers: further headers, such as an API key.
    """

    base_url: str
    model: str
    endpoint: str = "/v1/completions"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Answer:
    """What came back for one request; times count from its sending.

    Attributes:
        error: empty if all went well.
        text: of the answer.
        tokens: its ids, where the request asks for them.
        num_input, num_output: tokens, as the server counts them.
        num_cached: prompt tokens that the server had in a cache.
        first_token_s: time to first token.
        latency_s: time to the last event.
        gaps_s: between events; an event of a speculating server may hold several tokens.
    """

    error: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    num_input: int = 0
    num_output: int = 0
    num_cached: int = 0
    first_token_s: float = 0.0
    latency_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    @property
    def time_per_output_token_s(self) -> float:
        """After the first token; 0 for answers of one token."""
        return (self.latency_s - self.first_token_s) / max(self.num_output - 1, 1)

    @property
    def output_tokens_per_s(self) -> float:
        """After the first token; 0 for answers of one token."""
        decode_s = self.latency_s - self.first_token_s
        return (self.num_output - 1) / decode_s if decode_s > 0 else 0.0


@dataclass(frozen=True)
class LoadResult:
    """Answers to all requests, and how long they took together."""

    answers: Sequence[Answer]
    duration_s: float

    @property
    def completed(self) -> list[Answer]:
        """Answers without error."""
        return [answer for answer in self.answers if not answer.error]

    @property
    def output_tokens_per_s(self) -> float:
        """Of all requests together."""
        return sum(answer.num_output for answer in self.completed) / self.duration_s


async def answer_one(server: Server, prompt: Prompt) -> Answer:
    """Send one request and follow its stream."""
    body: dict[str, Any] = {
        "model": server.model,
        "max_tokens": prompt.num_output,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra_body,
    }
    if server.endpoint == CHAT_ENDPOINT:
        is_chat = isinstance(prompt.content, list)
        message = {"role": "user", "content": prompt.content}
        body["messages"] = prompt.content if is_chat else [message]
    else:
        body["prompt"] = prompt.content
    answer = Answer(num_input=len(prompt.content))
    start_s = last_s = time.perf_counter()
    try:
        url = server.base_url + server.endpoint
        async with aclosing(post_events(url, body, server.headers)) as events:
            async for data in events:
                if data == b"[DONE]":
                    break
                last_s = _note_event(answer, json.loads(data), start_s, last_s)
        if not answer.num_output:
            answer.error = "the server reported no usage"
    except (HTTPError, ValueError) as error:
        answer.error = str(error)
    answer.latency_s = last_s - start_s
    return answer


async def run_load(
    server: Server,
    prompts: Sequence[Prompt],
    *,
    max_concurrency: int | None = None,
    request_rate: float = float("inf"),
    burstiness: float = 1.0,
    seed: int = 0,
    progress: str = "",
) -> LoadResult:
    """Send all prompts and wait for their answers.

    Args:
        server: where to.
        prompts: what.
        max_concurrency: requests that run at once; None for no bound.
        request_rate: arrivals a second; infinite sends all at once.
        burstiness: shape of the gamma law of the times between arrivals; 1 is a Poisson process.
        seed: of the arrivals.
        progress: name of a bar to show; empty for none.
    """
    gate = asyncio.Semaphore(max_concurrency or len(prompts))
    generator = random.Random(seed)
    bar = tqdm(total=len(prompts), desc=progress, disable=not progress)

    async def one(prompt: Prompt) -> Answer:
        async with gate:
            answer = await answer_one(server, prompt)
        bar.update()
        return answer

    start_s = time.perf_counter()
    tasks = []
    for prompt in prompts:
        tasks.append(asyncio.create_task(one(prompt)))
        if request_rate != float("inf"):
            await asyncio.sleep(generator.gammavariate(burstiness, 1 / (request_rate * burstiness)))
    answers = await asyncio.gather(*tasks)
    bar.close()
    return LoadResult(answers, time.perf_counter() - start_s)


def summarise(result: LoadResult, percentiles: Sequence[float] = (99,)) -> dict[str, Any]:
    """Figures under the names of vLLM's benchmark; times in milliseconds."""
    done = result.completed
    num_input = sum(answer.num_input for answer in done)
    num_output = sum(answer.num_output for answer in done)
    summary: dict[str, Any] = {
        "duration": result.duration_s,
        "completed": len(done),
        "failed": len(result.answers) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / result.duration_s,
        "output_throughput": num_output / result.duration_s,
        "total_token_throughput": (num_input + num_output) / result.duration_s,
    }
    for name, values in latencies_ms(result).items():
        summary[f"mean_{name}_ms"] = sum(values) / max(len(values), 1)
        summary[f"median_{name}_ms"] = percentile(values, 50)
        summary[f"std_{name}_ms"] = statistics.pstdev(values) if values else 0.0
        for share in percentiles:
            summary[f"p{share:g}_{name}_ms"] = percentile(values, share)
    return summary


def latencies_ms(result: LoadResult) -> dict[str, list[float]]:
    """All values of each latency, in milliseconds."""
    done = result.completed
    return {
        "ttft": [1000 * a.first_token_s for a in done],
        "tpot": [1000 * a.time_per_output_token_s for a in done if a.num_output > 1],
        "itl": [1000 * gap_s for a in done for gap_s in a.gaps_s],
        "e2el": [1000 * a.latency_s for a in done],
    }


def num_good(result: LoadResult, limits_ms: Mapping[str, float]) -> int:
    """Answers that met every limit.

    Args:
        result: of a run.
        limits_ms: milliseconds, for `ttft`, `tpot` and `e2el`.
    """
    return sum(
        all(
            1000 * taken_s <= limits_ms.get(name, float("inf"))
            for name, taken_s in (
                ("ttft", answer.first_token_s),
                ("tpot", answer.time_per_output_token_s),
                ("e2el", answer.latency_s),
            )
        )
        for answer in result.completed
    )


async def served_model(base_url: str, headers: Mapping[str, str] | None = None) -> str:
    """The first model that the server offers."""
    models = json.loads(await get_text(f"{base_url}/v1/models", headers))
    return str(models["data"][0]["id"])


async def tokenize(server: Server, text: str) -> list[int]:
    """Token ids of a text by the server's own tokenizer: vLLM's and fdspec's form, or llama.cpp's.

    Raises:
        HTTPError: the server offers neither.
    """
    url = f"{server.base_url}/tokenize"
    forms = [{"model": server.model, "prompt": text}, {"content": text}]
    for form in forms:
        try:
            tokens = (await post_json(url, form, server.headers)).get("tokens")
        except HTTPError as error:
            if "cannot connect" in str(error):
                raise
            continue
        if tokens:
            return [int(token) for token in tokens]
    raise HTTPError(f"{url}: the server does not tokenise; give --tokenizer PATH")


def _note_event(answer: Answer, event: Mapping[str, Any], start_s: float, last_s: float) -> float:
    """Add an event to an answer; returns when the last event with tokens came."""
    if "error" in event:
        raise HTTPError(f"the stream ended with {event['error']}")
    if usage := event.get("usage"):
        answer.num_input = usage["prompt_tokens"]
        answer.num_output = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answer.num_cached = details.get("cached_tokens") or 0
    if not event.get("choices") or not _holds_tokens(event["choices"][0]):
        return last_s
    now_s = time.perf_counter()
    choice = event["choices"][0]
    answer.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    answer.tokens += choice.get("token_ids") or ()
    if answer.first_token_s == 0.0:
        answer.first_token_s = now_s - start_s
    else:
        answer.gaps_s.append(now_s - last_s)
    return now_s


def _holds_tokens(choice: Mapping[str, Any]) -> bool:
    """Whether an event carries output; the first of a chat may only name the role."""
    if "text" in choice:
        return (
            bool(choice["text"]) or bool(choice.get("token_ids")) or not choice.get("finish_reason")
        )
    delta = choice.get("delta", {})
    return any(delta.get(name) for name in ("content", "reasoning_content", "token_ids"))
