# SPDX-License-Identifier: Apache-2.0
"""Kill workers under load, and compare every answer with that of an undisturbed run.

Starts the servers of a file by the launcher, asks every question once, and then sends them again
and again while a random worker is killed every few seconds; the launcher starts it again. At the
end every answer must be there and have the same tokens, each once, and every block must be free.

    python -m benchmarks.soak --config configs/yaml/pd_local.yaml --requests 300 --concurrency 16
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.datasets import Lengths, Prompt, character_slices, corpus_text
from benchmarks.http_client import HTTPError, get_text
from benchmarks.launched_servers import launched_servers
from benchmarks.load import Answer, Server, answer_one, served_model
from benchmarks.report import add_report_options, machine, percentile, print_table, write_report
from scripts.server_process import ServerError

_POLL_S = 0.2


@dataclasses.dataclass(frozen=True)
class Question:
    """A request, in all its fields.

    Attributes:
        prompt: text and length of the answer.
        fields: how tokens are drawn.
    """

    prompt: Prompt
    fields: dict[str, Any]


def make_questions(options: argparse.Namespace) -> list[Question]:
    """Slices of a text; every second answer is drawn at random, with a seed."""
    lengths = Lengths(options.input_len, options.output_len, 0.5)
    prompts = character_slices(corpus_text(), options.questions, lengths, options.seed)
    return [
        Question(
            prompt,
            {
                "temperature": 0.0 if index % 2 else 0.9,
                "seed": index,
                "ignore_eos": True,
                "return_token_ids": True,
            },
        )
        for index, prompt in enumerate(prompts)
    ]


async def ask(server: Server, question: Question) -> Answer:
    """One answer."""
    return await answer_one(
        dataclasses.replace(server, extra_body=question.fields), question.prompt
    )


async def cluster(url: str) -> dict[str, Any]:
    """The topic, as the frontend sees it; empty while it cannot tell."""
    try:
        return dict(json.loads(await get_text(f"{url}/v1/cluster")))
    except (HTTPError, ValueError):
        return {}


async def kill_workers(url: str, every_s: float, seed: int, killed: list[str]) -> None:
    """Kill a random engine again and again, until cancelled.

    Args:
        url: of a frontend.
        every_s: seconds between two.
        seed: of the choice.
        killed: gets the role of each.
    """
    source = random.Random(seed)
    while True:
        await asyncio.sleep(every_s)
        workers = (await cluster(url)).get("workers", [])
        if not workers:
            continue
        victim = source.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(victim["name"].rpartition(":")[2]), signal.SIGKILL)
            killed.append(victim["role"])


async def wait_idle(url: str, num_workers: int, limit_s: float) -> str:
    """Wait until nothing is held; returns what still is, or nothing."""
    deadline_s = time.monotonic() + limit_s
    while True:
        found = await cluster(url)
        workers = found.get("workers", [])
        busy = [w for w in workers if w["free_blocks"] != w["blocks"] or w["leased"]]
        if len(workers) == num_workers and not busy and not found["leased"]:
            return ""
        if time.monotonic() > deadline_s:
            return f"{len(workers)} of {num_workers} workers are there, and {busy} are busy"
        await asyncio.sleep(_POLL_S)


async def soak(options: argparse.Namespace, url: str) -> dict[str, Any]:
    """The undisturbed run, and the other one."""
    server = Server(url, await served_model(url))
    questions = make_questions(options)
    num_workers = len((await cluster(url))["workers"])
    gate = asyncio.Semaphore(options.concurrency)

    async def one(question: Question, bar: Any) -> Answer:
        async with gate:
            answer = await ask(server, question)
        bar.update()
        return answer

    with tqdm(total=len(questions), desc="undisturbed") as bar:
        expected = await asyncio.gather(*(one(question, bar) for question in questions))
    if failed := [answer.error for answer in expected if answer.error]:
        raise HTTPError(f"the undisturbed run failed: {failed[0]}")
    killed: list[str] = []
    killing = asyncio.create_task(kill_workers(url, options.kill_every, options.seed, killed))
    start_s = time.monotonic()
    indices = [number % len(questions) for number in range(options.requests)]
    with tqdm(total=len(indices), desc="with kills") as bar:
        answers = await asyncio.gather(*(one(questions[index], bar) for index in indices))
    duration_s = time.monotonic() - start_s
    killing.cancel()
    outcomes = Counter(
        "lost" if answer.error else "same" if same(answer, expected[index]) else "different"
        for answer, index in zip(answers, indices, strict=True)
    )
    return {
        "requests": len(answers),
        **{name: outcomes[name] for name in ("same", "different", "lost")},
        "tokens": sum(answer.num_output for answer in answers),
        "duration_s": duration_s,
        "killed": dict(Counter(killed)),
        "longest_gap_s": max((gap for a in answers for gap in a.gaps_s), default=0.0),
        "p50_latency_s": percentile([answer.latency_s for answer in answers], 50),
        "errors": dict(Counter(answer.error for answer in answers if answer.error)),
        "left": await wait_idle(url, num_workers, options.idle_limit),
    }


def same(answer: Answer, expected: Answer) -> bool:
    """Whether text and tokens are those of the undisturbed run, each once."""
    return (answer.text, answer.tokens) == (expected.text, expected.tokens)


def print_report(report: dict[str, Any]) -> None:
    """What became of the requests."""
    names = ("requests", "same", "different", "lost", "tokens")
    print_table(names, [[report[name] for name in names]])
    killed = ", ".join(f"{number} {role}" for role, number in sorted(report["killed"].items()))
    print(f"killed in {report['duration_s']:.0f} s: {killed or 'nobody'}")
    print(f"longest pause of a stream: {report['longest_gap_s']:.1f} s")
    for error, number in report["errors"].items():
        print(f"lost: {number} x {error}")
    print(report["left"] or "afterwards every worker was there and every block free")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="of a launch that has a frontend")
    parser.add_argument("--requests", type=count, default=300)
    parser.add_argument("--concurrency", type=count, default=16, help="requests at once")
    parser.add_argument("--questions", type=count, default=40, help="different requests")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds")
    parser.add_argument("--input-len", type=count, default=64, help="tokens of a prompt, about")
    parser.add_argument("--output-len", type=count, default=64, help="tokens of an answer, about")
    parser.add_argument("--idle-limit", type=float, default=60.0, help="seconds to become idle")
    parser.add_argument("--seed", type=int, default=0)
    add_report_options(parser, has_plot=False)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 if an answer was lost or is another, or if something is left."""
    options = parse_arguments(arguments)
    # A server that is killed while it starts has not failed to start.
    flags = ["--supervision.max_failed_starts", "1000", "--supervision.restart_delay", "0.1"]
    try:
        with launched_servers([options.config], flags) as servers:
            report = asyncio.run(soak(options, servers.url))
    except (ServerError, HTTPError) as error:
        raise SystemExit(f"error: {error}") from None
    print_report(report)
    write_report(options, {"machine": machine(), **report})
    return 0 if report["same"] == report["requests"] and not report["left"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
