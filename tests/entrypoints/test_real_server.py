# SPDX-License-Identifier: Apache-2.0
"""The whole server with the demo model: speculation changes no answer, streams equal whole answers.

One server for the module; each test stands for a way in which servers have been wrong.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.entrypoints.sse import joined_text, stream
from tests.entrypoints.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PLAIN = {"speculative": {"enabled": False}}
LOOP = " ".join(["tick tock"] * 24)
EXTRACT = (
    "Repeat this text: The river runs past the mill, and the mill grinds the corn. "
    "Repeated: The river runs past"
)
PROMPTS = [LOOP, EXTRACT, "Once upon a time", "def fibonacci(n):\n"]
PROCESSORS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.2, "seed": 4, "top_p": 0.9, "top_k": 40, "min_p": 0.02},
    {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.2, "logit_bias": {"28": -100}},
    {"temperature": 0.9, "seed": 6, "bad_words": ["tick", "mill"], "min_tokens": 12},
]


class RealServer:
    """`python -m fdspec.entrypoints.api_server` with the demo's configuration."""

    def __init__(self, *flags: str) -> None:
        assert MODEL.exists(), "`make model` brings the demo model"
        command = [sys.executable, "-m", "fdspec.entrypoints.api_server"]
        command += ["--config", "configs/yaml/quickstart.yaml", "--port", "0", *flags]
        self._process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        pattern = r"serving on (http://\S+)"
        wait_until(lambda: re.search(pattern, self.log) or self._process.poll() is not None)
        match = re.search(pattern, self.log)
        assert match is not None, self.log
        self.url = match[1]

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(DEADLINE_S)
        self._reader.join()
        return status


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log
    assert "FatalError" not in server.log


@pytest.fixture
def http(server: RealServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as http:
        yield http


def complete(http: httpx.Client, prompt: Any, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/completions", json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def tokens_of(http: httpx.Client, prompt: Any, **fields: Any) -> list[int]:
    answer = complete(http, prompt, return_token_ids=True, **fields)
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


def gauge(http: httpx.Client, name: str) -> float:
    match = re.search(rf"^fdspec:{name} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    assert match is not None
    return float(match[1])


def wait_idle(http: httpx.Client) -> None:
    """Nothing runs and every block is back."""
    num_blocks = gauge(http, "max_gpu_block_num")
    wait_until(
        lambda: gauge(http, "num_requests_running") == gauge(http, "num_requests_waiting") == 0
    )
    wait_until(lambda: gauge(http, "available_gpu_block_num") == num_blocks)


def check_exactness(
    http: httpx.Client, prompt: str, limits: tuple[int | None, ...], **fields: Any
) -> int:
    """Same tokens with drafts up to each limit and without; returns the accepted drafts."""
    plain = tokens_of(http, prompt, **fields, **PLAIN)
    num_accepted = 0
    for limit in limits:
        options = {"num_speculative_tokens": limit}
        answer = complete(http, prompt, return_token_ids=True, speculative=options, **fields)
        assert answer["choices"][0]["token_ids"] == plain, (prompt, limit)
        num_accepted += answer["usage"]["speculative"]["num_accepted_tokens"]
    return num_accepted


def test_speculation_changes_no_token(http):
    num_accepted = [
        check_exactness(http, LOOP, (None,), max_tokens=24, **fields) for fields in PROCESSORS
    ]
    assert num_accepted[0] > 0, "drafts were accepted, so the comparison means something"


@pytest.mark.full
@pytest.mark.parametrize("fields", PROCESSORS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_speculation_changes_no_token_at_length(http, prompt, fields):
    check_exactness(http, prompt, (1, 2, 3, 4, None), max_tokens=96, **fields)


def test_logprobs_are_those_of_the_same_rows(http):
    fields = {"max_tokens": 40, "logprobs": 5, "temperature": 0.8, "seed": 3}
    plain = complete(http, LOOP, **fields, **PLAIN)["choices"][0]
    fast = complete(http, LOOP, **fields)["choices"][0]
    assert fast["logprobs"] == plain["logprobs"]
    values = fast["logprobs"]["token_logprobs"]
    assert len(values) == 40
    assert all(value < 0 for value in values)
    for token, value, top in zip(
        fast["logprobs"]["tokens"], values, fast["logprobs"]["top_logprobs"], strict=True
    ):
        assert top[token] == value
        ranked = list(top.values())[:5]
        assert ranked == sorted(ranked, reverse=True)


def test_prompt_logprobs(http):
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    logprobs = complete(http, EXTRACT, **fields)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"][:-1]) == EXTRACT
    text = "".join(logprobs["tokens"])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[offset : offset + len(token)] == token


def test_a_stop_string_inside_an_accepted_run(http):
    fields = {"temperature": 0, "max_tokens": 32}
    whole = complete(http, EXTRACT, **fields, **PLAIN)["choices"][0]["text"]
    for start, length in ((5, 3), (30, 14)):
        stop = whole[start : start + length]
        expected = whole[: whole.index(stop)]
        for extra in ({}, PLAIN):
            choice = complete(http, EXTRACT, stop=stop, **fields, **extra)["choices"][0]
            assert (choice["text"], choice["stop_reason"]) == (expected, stop)
        events = stream(http, "/v1/completions", {"prompt": EXTRACT, "stop": stop, **fields})
        assert joined_text(events) == expected


def test_min_tokens_and_stop_ids(http):
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 48}
    plain = tokens_of(http, EXTRACT, **fields, **PLAIN)
    stop_id = plain[6]
    for min_tokens in (0, 6, 7, 8):
        same = {"stop_token_ids": [stop_id], "min_tokens": min_tokens, **fields}
        tokens = tokens_of(http, EXTRACT, **same)
        assert tokens == tokens_of(http, EXTRACT, **same, **PLAIN)
        # A stop id is masked before min_tokens, so it can only be last.
        assert stop_id not in tokens[: max(min_tokens, 1) - 1]
        assert stop_id not in tokens[:-1]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 8, 12])
def test_characters_made_of_several_tokens(http, max_tokens):
    body = {"prompt": "\N{SLIGHTLY SMILING FACE}\N{UPSIDE-DOWN FACE}" * 12, "temperature": 0}
    body["max_tokens"] = max_tokens
    whole = complete(http, **body)["choices"][0]["text"]
    events = stream(http, "/v1/completions", body)
    assert joined_text(events) == whole
    assert "\N{REPLACEMENT CHARACTER}" not in joined_text(events[:-1])


def test_usage_adds_up(http):
    answer = complete(http, LOOP, temperature=0, max_tokens=60, logprobs=0, return_token_ids=True)
    report = answer["usage"]["speculative"]
    choice = answer["choices"][0]
    num = answer["usage"]["completion_tokens"]
    assert num == len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == 60
    assert 1 + report["num_steps"] + report["num_accepted_tokens"] in (num, num + 1)
    assert sum(report["accepted_per_position"]) == report["num_accepted_tokens"] > 0
    assert sum(report["drafted_per_position"]) == report["num_drafted_tokens"]


def test_seeds(server):
    """Same seed, same answer, alone or among others; no seed, different answers."""

    async def ask(client, **fields):
        answer = await client.completions.create(
            model="smollm2", prompt="Once upon a time", max_tokens=24, temperature=1, **fields
        )
        return answer.choices[0].text

    async def main():
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            alone = await ask(client, seed=1)
            seeded = [ask(client, seed=1) for _ in range(6)]
            free = [ask(client) for _ in range(6)]
            plain = [ask(client, seed=1, extra_body=PLAIN)]
            return alone, await asyncio.gather(*seeded, *plain), await asyncio.gather(*free)

    alone, seeded, free = asyncio.run(main())
    assert set(seeded) == {alone}
    assert len(set(free)) == len(free)


def test_choices_differ(http):
    answer = complete(http, "Once upon a time", n=4, seed=1, max_tokens=24)
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 4
    again = complete(http, "Once upon a time", n=2, seed=1, max_tokens=24, **PLAIN)
    assert [choice["text"] for choice in again["choices"]] == texts[:2]


def test_chat(server, http):
    """By the official client, whole and streaming."""
    messages = [{"role": "user", "content": "Name the colours of the rainbow."}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        fields: dict[str, Any] = {"model": "smollm2", "messages": messages, "max_tokens": 40}
        whole = client.chat.completions.create(**fields, temperature=0)
        with client.chat.completions.create(
            **fields, temperature=0, stream=True, stream_options={"include_usage": True}
        ) as chunks:
            *parts, last = list(chunks)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    tokenized = http.post("/tokenize", json={"messages": messages}).json()
    assert tokenized["count"] == whole.usage.prompt_tokens


def test_out_of_vocabulary_ids_disturb_nobody(http):
    expected = tokens_of(http, LOOP, temperature=0, max_tokens=32)
    bad = [
        {"prompt": "a", "stop_token_ids": [999999999], "min_tokens": 2},
        {"prompt": "a", "logit_bias": {"999999": 1}},
        {"prompt": [-1]},
        {"prompt": [49152]},
        {"prompt": [1] * 4096},
        {"prompt": "a", "bad_words_token_ids": [10**9]},
    ]
    tokens: list[list[int]] = []
    good = threading.Thread(
        target=lambda: tokens.append(tokens_of(http, LOOP, temperature=0, max_tokens=32))
    )
    good.start()
    for body in bad:
        assert http.post("/v1/completions", json=body).status_code == 400
    good.join()
    assert tokens == [expected]


def storm(server: RealServer, num_requests: int, seed: int) -> None:
    """Mixed requests, 16 at once, a third of them given up at a random moment."""
    draw = random.Random(seed)

    def body() -> dict[str, Any]:
        return {
            "prompt": draw.choice(PROMPTS) * draw.randint(1, 4),
            "max_tokens": draw.randint(12, 48),
            "stream": draw.random() < 0.5,
            "n": draw.choice([1, 1, 1, 2, 3]),
            "stop": draw.choice([None, " the", "\n"]),
            "logprobs": draw.choice([None, 2]),
            "echo": draw.random() < 0.2,
            **draw.choice([*PROCESSORS, PLAIN]),
        }

    async def ask(
        http: httpx.AsyncClient, gate: asyncio.Semaphore, give_up_s: float | None
    ) -> None:
        async with gate:
            try:
                async with asyncio.timeout(give_up_s):
                    response = await http.post("/v1/completions", json=body())
                    assert response.status_code == 200, response.text
                    assert '"error"' not in response.text
            except TimeoutError:
                assert give_up_s is not None

    async def main() -> None:
        gate = asyncio.Semaphore(16)
        async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S * 5) as http:
            patience = [
                draw.uniform(0.0, 2.0) if draw.random() < 0.33 else None
                for _ in range(num_requests)
            ]
            await asyncio.gather(*(ask(http, gate, give_up_s) for give_up_s in patience))

    asyncio.run(main())


def test_a_storm_leaves_nothing_behind(server, http):
    storm(server, 32, seed=1)
    wait_idle(http)
    assert http.get("/load").json() == {"server_load": 0}


@pytest.mark.full
def test_two_storms_need_the_memory_of_one(server, http):
    def private_kib() -> int:
        """Of both processes; the KV arena is shared memory, whose pages come with first use."""
        pid = server.process_id
        engine_pid = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        statuses = [Path(f"/proc/{process}/status").read_text() for process in (pid, engine_pid)]
        found = [re.search(r"RssAnon:\s+(\d+) kB", status) for status in statuses]
        return sum(int(match[1]) for match in found if match is not None)

    storm(server, 200, seed=2)
    wait_idle(http)
    before = private_kib()
    storm(server, 200, seed=3)
    wait_idle(http)
    assert private_kib() - before < 16 * 1024


def test_a_cleared_cache_computes_the_prompt_again(http: httpx.Client) -> None:
    prompt = "One day the miller walked up the hill, and " * 30

    def ask() -> tuple[list[int], int]:
        answer = complete(http, prompt, return_token_ids=True, temperature=0, max_tokens=8)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["token_ids"], cached

    http.post("/v1/cache/clear")
    tokens, cached = ask()
    assert cached == 0
    again, cached = ask()
    assert cached > 0 and again == tokens
    assert http.post("/v1/cache/clear").json()["num_blocks"] > 0
    assert ask() == (tokens, 0)


def test_a_pause_ends(http: httpx.Client) -> None:
    assert http.post("/v1/pause").json()["is_paused"]
    assert http.post("/v1/completions", json={"prompt": "hi"}).status_code == 503
    http.post("/v1/resume")
    complete(http, "hi", max_tokens=2)
