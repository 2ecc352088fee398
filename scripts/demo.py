# SPDX-License-Identifier: Apache-2.0
"""Show fdspec at work: prefill and decode apart, chat, repeat a text, compare with plain decoding.

Starts a broker, a prefill server, a decode server and a frontend by the launcher, and stops them.
Needs the demo model in models/ and the compiled kernels: `make demo` sees to both. With --serve
(`make serve`) the servers stay until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from scripts.server_process import ServerError, ServerProcess, choose_port

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/yaml/pd_local.yaml"
SPECULATION = {"method": "ngram", "num_speculative_tokens": 5}
MODEL = "smollm2"
START_TIMEOUT_S = 300.0
READY = r"all \d+ servers are ready"
DECODE_URL = r"(?m)^decode +\| .*serving on (http://\S+)"
TIMELINE_COLUMNS = 40

CHAT = "Give me three short reasons to take a walk every day."
COMPLETION = "The seven days of the week are Monday,"
TEXT = """\
The old mill stands where the river leaves the forest. For two hundred years it ground the wheat \
of four villages, and every autumn the carts stood in a long line along the road. The miller \
knew each farmer by name, and each farmer knew that the miller gave honest weight. When the \
railway came, the big mills in the town took over the work, and the wheel by the river stopped. \
Today a family of otters lives under the wheel, and the children of the villages come in summer \
to watch them swim. The stones are still inside, covered with dust, and on quiet evenings the \
wind still turns the wheel by the width of a hand."""
EXTRACTION = f"Repeat this text exactly, but write stream instead of river.\n\n{TEXT}"


@dataclass(frozen=True)
class Handoffs:
    """KV caches that the decode server has taken over since its start.

    Attributes:
        count: how many.
        num_bytes: of all of them.
        seconds: that it took to copy them, checksums included.
    """

    count: int
    num_bytes: float
    seconds: float

    @classmethod
    def of(cls, url: str) -> Handoffs:
        """As a decode server's metrics say."""
        text = httpx.get(f"{url}/metrics", timeout=10.0).text

        def value(name: str) -> float:
            found = re.search(rf"(?m)^\w+:kv_{name}_total (\S+)", text)
            return float(found[1]) if found else 0.0

        names = ("handoffs_loaded", "handoff_bytes", "handoff_seconds")
        loaded, num_bytes, seconds = map(value, names)
        return cls(int(loaded), num_bytes, seconds)


@dataclass(frozen=True)
class Answer:
    """One streamed answer.

    Attributes:
        text: all of it.
        num_prompt, num_tokens: tokens of prompt and output.
        first_token_s: from sending the request to the first piece of text.
        decode_s: from the first piece of text to the last.
        tokens_per_step: mean over the steps after the first token.
        num_drafted, num_accepted: draft tokens.
    """

    text: str
    num_prompt: int
    num_tokens: int
    first_token_s: float
    decode_s: float
    tokens_per_step: float
    num_drafted: int
    num_accepted: int

    @property
    def tokens_per_s(self) -> float:
        """Decode speed; the first token belongs to the prompt's time."""
        return (self.num_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="leave the server running")
    parser.add_argument("--port", type=int, help="default: a free one (--serve: 8000 if free)")
    options = parser.parse_args(arguments)
    # So that `kill` stops the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    port = options.port or choose_port(preferred=8000 if options.serve else None)
    command = [sys.executable, "-m", "fdspec.entrypoints.launch", "--config", CONFIG]
    command += ["--speculative-config", json.dumps(SPECULATION), "--port", str(port)]
    try:
        with ServerProcess(command, ROOT, port, show_log=options.serve) as server:
            if options.serve:
                server.wait_until_healthy(START_TIMEOUT_S)
                return serve(server)
            print(f"starting prefill, decode and frontend on {server.url} ...", flush=True)
            server.wait_until_logged(READY, START_TIMEOUT_S)
            return run_demo(server)
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
        return 130


def serve(server: ServerProcess) -> int:
    """Say how to talk to the servers, then wait for their end."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]})
    print(
        f"\nTry it:\n  curl {server.url}/v1/chat/completions -H 'Content-Type: application/json' \\"
    )
    print(f"    -d '{body}'\nCtrl-C stops the servers.\n", flush=True)
    return server.wait()


def run_demo(server: ServerProcess) -> int:
    """Send the demo's requests and compare; 1 if speculation changed a text."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    plain = {"speculative": {"num_speculative_tokens": 0}}

    print(f"\n--- Chat, sampled with a seed ---\n> {CHAT}\n")
    chat: dict[str, Any] = {"temperature": 0.6, "seed": 2, "max_tokens": 120}
    chat_drafted = ask(client, CHAT, chat, {}, show=True)
    chat_plain = ask(client, CHAT, chat, plain, show=False)

    print(f"\n--- Raw completion ---\n> {COMPLETION}\n")
    print(complete(server.url))

    print(f"\n--- Repeat a text with one word changed ---\n> {shorten(EXTRACTION)}\n")
    extraction: dict[str, Any] = {"temperature": 0.0, "max_tokens": 256}
    decode_url = server.wait_until_logged(DECODE_URL, START_TIMEOUT_S)[1]
    before = Handoffs.of(decode_url)
    text_drafted = ask(client, EXTRACTION, extraction, {}, show=True)
    print_timeline(text_drafted, before, Handoffs.of(decode_url))
    text_plain = ask(client, EXTRACTION, extraction, plain, show=False)

    print("\n--- The same requests with and without speculation ---")
    print(f"{'':26}{'tokens':>8}{'tokens/s':>10}{'tokens/step':>13}{'drafts accepted':>18}")
    for name, answer in (
        ("chat, n-gram drafts", chat_drafted),
        ("chat, plain", chat_plain),
        ("repetition, n-gram drafts", text_drafted),
        ("repetition, plain", text_plain),
    ):
        drafts = f"{answer.num_accepted} of {answer.num_drafted}" if answer.num_drafted else "-"
        print(
            f"{name:26}{answer.num_tokens:8}{answer.tokens_per_s:10.1f}"
            f"{answer.tokens_per_step:13.2f}{drafts:>18}"
        )
    is_same = chat_drafted.text == chat_plain.text and text_drafted.text == text_plain.text
    speedup = text_drafted.tokens_per_s / max(text_plain.tokens_per_s, 1e-9)
    print("(tokens/step: mean accepted length, the model's own token included)")
    print(f"\nRepetition is {speedup:.1f} times as fast with speculation.")
    print(f"Texts with and without speculation are {'identical' if is_same else 'DIFFERENT'}.")
    return 0 if is_same else 1


def print_timeline(answer: Answer, before: Handoffs, after: Handoffs) -> None:
    """Where the time of an answer went: prefill, handoff, decode."""
    handoff_s = after.seconds - before.seconds
    size = (after.num_bytes - before.num_bytes) / 1e6
    decode_s = max(answer.decode_s - handoff_s, 0.0)
    phases = (
        (
            "prefill",
            answer.first_token_s,
            f"{answer.num_prompt} tokens, and the first of the answer",
        ),
        ("handoff", handoff_s, f"{size:.1f} MB of keys and values"),
        ("decode", decode_s, f"{answer.num_tokens - 1} tokens"),
    )
    total_s = sum(seconds for _, seconds, _ in phases)
    start_s = 0.0
    print("\n--- Where its time went: one process computed the prompt, another one the answer ---")
    for name, seconds, what in phases:
        first = round(TIMELINE_COLUMNS * start_s / total_s)
        start_s += seconds
        width = max(round(TIMELINE_COLUMNS * start_s / total_s) - first, 1)
        bar = (" " * first + "#" * width)[:TIMELINE_COLUMNS].ljust(TIMELINE_COLUMNS)
        print(f"{name:8}|{bar}|{1000 * seconds:7.0f} ms  {what}")
    if after.count == before.count:
        print("(no handoff: the decode server computed the prompt itself)")


def ask(
    client: OpenAI, prompt: str, params: dict[str, Any], extra: dict[str, Any], *, show: bool
) -> Answer:
    """Stream one chat answer, printing it as it comes if `show`."""
    start = first = last = time.perf_counter()
    pieces: list[str] = []
    usage: Any = None
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
        **params,
    )
    for chunk in stream:
        usage = chunk.usage or usage
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            last = time.perf_counter()
            first = last if not pieces else first
            pieces.append(text)
            if show:
                print(text, end="", flush=True)
    if show:
        print(f"\n\n(first token after {1000 * (first - start):.0f} ms)")
    drafts = usage.model_extra["speculative"]
    return Answer(
        text="".join(pieces),
        num_prompt=usage.prompt_tokens,
        num_tokens=usage.completion_tokens,
        first_token_s=first - start,
        decode_s=last - first,
        tokens_per_step=drafts["mean_tokens_per_step"],
        num_drafted=drafts["num_drafted_tokens"],
        num_accepted=drafts["num_accepted_tokens"],
    )


def complete(url: str) -> str:
    """The raw completion, by plain HTTP."""
    body = {"model": MODEL, "prompt": COMPLETION, "max_tokens": 24, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60.0)
    response.raise_for_status()
    return str(response.json()["choices"][0]["text"]).strip("\n")


def shorten(text: str) -> str:
    """A text cut to two lines."""
    return textwrap.shorten(text, 150, placeholder=" ...")


if __name__ == "__main__":
    sys.exit(main())
