# SPDX-License-Identifier: Apache-2.0
"""Runs requests against an OpenAI-compatible server and measures when their tokens arrive."""

from __future__ import annotations

import asyncio
import json
import random
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
        num_input, num_output: tokens, as the server counts them.
        first_token_s: time to first token.
        latency_s: time to the last event.
        gaps_s: between events; an event of a speculating server may hold several tokens.
    """

    error: str = ""
    num_input: int = 0
    num_output: int = 0
    first_token_s: float = 0.0
    latency_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    @property
    def time_per_output_token_s(self) -> float:
        """After the first token; 0 for answers of one token."""
        return (self.latency_s - self.first_token_s) / max(self.num_output - 1, 1)


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
        body["messages"] = [{"role": "user", "content": prompt.content}]
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
    progress: bool = False,
) -> LoadResult:
    """Send all prompts and wait for their answers.

    Args:
        server: where to.
        prompts: what.
        max_concurrency: requests that run at once; None for no bound.
        request_rate: arrivals a second; infinite sends all at once.
        burstiness: shape of the gamma law of the times between arrivals; 1 is a Poisson process.
        seed: of the arrivals.
        progress: show a bar.
    """
    gate = asyncio.Semaphore(max_concurrency or len(prompts))
    generator = random.Random(seed)
    bar = tqdm(total=len(prompts), desc="requests", disable=not progress)

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
    times_s = {
        "ttft": [answer.first_token_s for answer in done],
        "tpot": [answer.time_per_output_token_s for answer in done if answer.num_output > 1],
        "itl": [gap_s for answer in done for gap_s in answer.gaps_s],
        "e2el": [answer.latency_s for answer in done],
    }
    for name, values in times_s.items():
        summary[f"mean_{name}_ms"] = 1000 * sum(values) / max(len(values), 1)
        summary[f"median_{name}_ms"] = 1000 * percentile(values, 50)
        for share in percentiles:
            summary[f"p{share:g}_{name}_ms"] = 1000 * percentile(values, share)
    return summary


async def draft_counters(server: Server) -> dict[str, float] | None:
    """Speculation counters of /metrics, whatever their prefix; None if the server has none."""
    try:
        text = await get_text(f"{server.base_url}/metrics", server.headers)
    except HTTPError:
        return None
    counters: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0].endswith(f":spec_decode_num_{name}_total"):
                counters[name] = counters.get(name, 0.0) + float(value)
    return counters or None


def draft_summary(
    before: Mapping[str, float] | None, after: Mapping[str, float] | None
) -> dict[str, float] | None:
    """What speculation did between two readings; None if the server does not speculate."""
    if before is None or after is None:
        return None
    counts = {name: after[name] - before.get(name, 0.0) for name in after}
    drafted, accepted = counts.get("draft_tokens", 0.0), counts.get("accepted_tokens", 0.0)
    rate = accepted / drafted if drafted else 0.0
    return {**counts, "acceptance_rate": rate}


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
    if not event.get("choices") or not _holds_tokens(event["choices"][0]):
        return last_s
    now_s = time.perf_counter()
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
