# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server whose answers are known."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import benchmark_serving, datasets
from benchmarks.datasets import Prompt
from benchmarks.http_client import HTTPError, get_text
from benchmarks.load import Answer, LoadResult, Server, run_load, summarise
from scripts.server_process import ServerProcess, choose_port
from tests.benchmarks.fake_openai import FakeOpenAI, fake_openai


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with fake_openai() as fake:
        yield fake


def run(server: FakeOpenAI, tmp_path: Path, *options: str) -> tuple[int, dict]:
    output = tmp_path / "serving.json"
    arguments = ["--base-url", server.url, "--output", str(output), *options]
    status = benchmark_serving.main(arguments)
    return status, json.loads(output.read_text())


def test_counts_tokens_and_keeps_to_the_concurrency(server, tmp_path, capsys) -> None:
    options = ["--num-prompts", "7", "--max-concurrency", "3", "--num-warmups", "2"]
    options += ["--random-input-len", "5", "--random-output-len", "4", "--ignore-eos"]
    status, report = run(server, tmp_path, *options)
    assert (status, report["completed"], report["failed"]) == (0, 7, 0)
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (49, 28)
    assert len(server.bodies) == 9
    assert server.most_running <= 3
    assert all(body["ignore_eos"] and body["max_tokens"] == 4 for body in server.bodies)
    assert all(len(body["prompt"]) == 5 and body["model"] == "fake" for body in server.bodies)
    assert len({body["prompt"][0] for body in server.bodies}) == 9
    # The two warm-ups drafted too, before the first reading.
    assert report["speculation"]["draft_tokens"] == 70
    assert report["speculation"]["acceptance_rate"] == pytest.approx(0.5)
    assert 0 < report["mean_ttft_ms"] <= report["mean_e2el_ms"]
    assert "70 tokens drafted, 35 accepted (50.0 %)" in capsys.readouterr().out


def test_chat(server, tmp_path) -> None:
    options = ["--endpoint", "/v1/chat/completions", "--num-prompts", "2", "--num-warmups", "0"]
    status, report = run(server, tmp_path, *options, "--random-output-len", "6")
    assert (status, report["total_output_tokens"]) == (0, 12)
    contents = [body["messages"][0]["content"] for body in server.bodies]
    assert all(len(content) == 128 * 4 for content in contents)


def test_llama_form_of_tokenize(server, tmp_path) -> None:
    server.tokenize_form = "content"
    status, _ = run(server, tmp_path, "--num-prompts", "1", "--dataset", "random")
    assert status == 0
    assert len(server.bodies[0]["prompt"]) == 128


def test_failures_are_told_and_do_not_count(server, tmp_path, capsys) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "good", "output_tokens": 3}, {"prompt": "bad"}, {"prompt": "worse"}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    server.refused, server.broken = "bad", "worse"
    options = ["--dataset-name", "custom", "--dataset-path", str(path), "--num-prompts", "3"]
    status, report = run(server, tmp_path, *options, "--num-warmups", "0")
    assert (status, report["completed"], report["failed"]) == (1, 1, 2)
    assert report["total_output_tokens"] == 3
    printed = capsys.readouterr().out
    assert "status 400" in printed
    assert "refused" in printed
    assert "out of luck" in printed


def test_a_server_that_is_not_there() -> None:
    with fake_openai() as gone:
        url = gone.url
    with pytest.raises(SystemExit, match="cannot connect"):
        benchmark_serving.main(["--base-url", url])
    with pytest.raises(HTTPError, match="cannot connect"):
        asyncio.run(get_text(url))


def test_other_status_is_an_error(server) -> None:
    with pytest.raises(HTTPError, match="status 404: no such path"):
        asyncio.run(get_text(f"{server.url}/nowhere"))


def test_request_rate_spreads_arrivals(server) -> None:
    prompts = [Prompt("x", 1)] * 6
    result = asyncio.run(run_load(Server(server.url, "fake"), prompts, request_rate=20.0, seed=1))
    assert not [answer.error for answer in result.answers if answer.error]
    assert len(result.completed) == 6


def test_a_real_server(tmp_path, smollm2_path) -> None:
    """fdspec itself: its tokenizer, its usage and its speculation counters are understood."""
    port, root = choose_port(), Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "fdspec.entrypoints.api_server", "--model", str(smollm2_path)]
    command += ["--port", str(port), "--max-model-len", "512", "--max-num-seqs", "2"]
    command += ["--speculative-config", json.dumps({"method": "ngram"})]
    output = tmp_path / "serving.json"
    options = ["--num-prompts", "3", "--max-concurrency", "2", "--num-warmups", "0"]
    options += ["--random-input-len", "40", "--random-output-len", "12", "--ignore-eos"]
    with ServerProcess(command, root, port) as server:
        server.wait_until_healthy(120)
        arguments = ["--base-url", server.url, "--output", str(output), *options]
        assert benchmark_serving.main(arguments) == 0
    report = json.loads(output.read_text())
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (120, 36)
    counts = report["speculation"]
    assert counts["draft_tokens"] >= counts["accepted_tokens"] >= 0


def test_summary_by_hand() -> None:
    answers = [
        Answer(num_input=10, num_output=3, first_token_s=1.0, latency_s=2.0, gaps_s=[0.25, 0.75]),
        Answer(num_input=20, num_output=1, first_token_s=3.0, latency_s=3.0),
        Answer(error="lost"),
    ]
    summary = summarise(LoadResult(answers, 2.0), [50])
    assert (summary["completed"], summary["failed"]) == (2, 1)
    assert summary["output_throughput"] == 2.0
    assert summary["total_token_throughput"] == 17.0
    assert summary["mean_ttft_ms"] == 2000.0
    assert summary["mean_tpot_ms"] == 500.0
    assert summary["p50_itl_ms"] == 500.0
    assert summary["median_e2el_ms"] == 2500.0


def test_equal_seeds_give_equal_prompts() -> None:
    tokens = range(1000)
    first = datasets.text_slices(tokens, 50, 10, 5, seed=3)
    assert first == datasets.text_slices(tokens, 50, 10, 5, seed=3)
    assert first != datasets.text_slices(tokens, 50, 10, 5, seed=4)
    assert len({prompt.content[0] for prompt in first}) == 50
    with pytest.raises(ValueError, match="too short"):
        datasets.text_slices(tokens, 50, 990, 5, seed=3)


def test_bad_line_of_a_file(tmp_path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(ValueError, match=r"prompts.jsonl:2: expected"):
        datasets.read_jsonl(path, 4, 16, 0)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no prompts"):
        datasets.read_jsonl(path, 4, 16, 0)


def test_corpus_is_long_enough_for_accuracy() -> None:
    assert len(datasets.corpus_text()) // datasets.CHARACTERS_PER_TOKEN > 40_000
