# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server whose answers are known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import benchmark_serving, datasets
from benchmarks.datasets import Prompt
from benchmarks.http_client import HTTPError, get_text
from benchmarks.load import Answer, LoadResult, Server, run_load, summarise
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
    printed = capsys.readouterr().out
    assert "70 tokens drafted, 35 accepted (50.0 %)" in printed
    assert report["speculation"]["acceptance_by_position"] == pytest.approx([0.5, 0.2])
    assert "accepted by position, %: 50.0 20.0" in printed


def test_chat(server, tmp_path) -> None:
    options = ["--backend", "openai-chat", "--num-prompts", "2", "--num-warmups", "0"]
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


def test_fields_of_requests(server, tmp_path) -> None:
    file = tmp_path / "request.yaml"
    file.write_text("top_p: 0.8\ntemperature: 0.8\nmetadata: {min_tokens: 3}\nmax_tokens: 2\n")
    options = ["--hyperparameter-path", str(file), "--temperature", "0.5", "--logprobs", "2"]
    options += ["--extra-body", '{"top_k": 7}', "--top-k", "3", "--num-warmups", "0"]
    _, report = run(server, tmp_path, *options, "--num-prompts", "1", "--metadata", "commit=abc")
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.8, 7)
    assert (body["logprobs"], body["metadata"]) == (2, {"min_tokens": 3})
    assert (report["total_output_tokens"], report["commit"]) == (2, "abc")
    run(server, tmp_path, *options, "--num-prompts", "1", "--backend", "openai-chat")
    assert (server.bodies[1]["logprobs"], server.bodies[1]["top_logprobs"]) == (True, 2)


def test_datasets(server, tmp_path) -> None:
    chat = tmp_path / "chat.jsonl"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    chat.write_text(json.dumps({"messages": messages, "max_tokens": 5}) + "\n")
    options = ["--num-prompts", "1", "--num-warmups", "0", "--backend", "openai-chat"]
    run(server, tmp_path, *options, "--dataset-name", "jsonl", "--dataset-path", str(chat))
    assert (server.bodies[-1]["messages"], server.bodies[-1]["max_tokens"]) == (messages, 5)
    with pytest.raises(SystemExit, match="give --backend openai-chat"):
        run(server, tmp_path, "--dataset-name", "jsonl", "--dataset-path", str(chat))
    run(server, tmp_path, *options, "--dataset-name", "prompts", "--random-output-len", "9")
    assert isinstance(server.bodies[-1]["messages"][0]["content"], str)
    assert server.bodies[-1]["max_tokens"] == 9
    shared = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "because" * 10}]
    shared.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    options = ["--num-prompts", "2", "--num-warmups", "0"]
    options += ["--dataset-name", "sharegpt", "--dataset-path", str(shared)]
    run(server, tmp_path, *options)
    # The fake's tokens have four characters.
    assert (server.bodies[-1]["prompt"], server.bodies[-1]["max_tokens"]) == ("why?", 17)
    run(server, tmp_path, *options, "--sharegpt-output-len", "4")
    assert server.bodies[-1]["max_tokens"] == 4
    shared.write_text("[{}]")
    with pytest.raises(SystemExit, match="expected a list of"):
        run(server, tmp_path, *options)


def test_lengths_that_vary(server, tmp_path) -> None:
    options = ["--random-range-ratio", "0.5", "--random-input-len", "20", "--num-prompts", "20"]
    for dataset in ("random", "text"):
        server.bodies.clear()
        run(server, tmp_path, *options, "--random-output-len", "10", "--dataset-name", dataset)
        lengths = {len(body["prompt"]) for body in server.bodies}
        assert len(lengths) > 3 and min(lengths) >= 10 and max(lengths) <= 30
        assert {body["max_tokens"] for body in server.bodies} <= set(range(5, 16))


def test_baseline(server, tmp_path, capsys) -> None:
    options = ["--baseline", "--rounds", "2", "--num-prompts", "3", "--num-warmups", "0"]
    options += ["--random-output-len", "4"]
    status, report = run(server, tmp_path, *options)
    assert status == 0
    plain = ["speculative" in body for body in server.bodies]
    # One or the other is first by turns, and the same prompts go both ways.
    assert plain == [False] * 3 + [True] * 6 + [False] * 3
    first, second = ([body["prompt"] for body in server.bodies[i : i + 3]] for i in (0, 3))
    assert sorted(first) == sorted(second)
    assert server.cleared == 4
    assert (report["completed"], report["baseline"]["completed"]) == (6, 6)
    assert (report["compared"], report["different"], len(report["rounds"])) == (6, 0, 2)
    pair = report["rounds"][0]
    first_ratio = pair[0]["output_throughput"] / pair[1]["output_throughput"]
    spread = report["ratios"]["output_throughput"]
    assert spread["low"] <= first_ratio <= spread["high"]
    printed = capsys.readouterr().out
    assert "6 of 6 answers are the same" in printed and "with speculation" in printed
    server.plain_letter = "y"
    status, report = run(server, tmp_path, *options)
    assert (status, report["different"]) == (1, 6)


def test_results_that_are_asked_for(server, tmp_path, capsys) -> None:
    options = ["--num-prompts", "4", "--num-warmups", "0", "--random-output-len", "5"]
    options += ["--percentile-metrics", "ttft,s_decode,output_len", "--metric-percentiles", "50"]
    options += ["--goodput", "ttft:1e9", "e2el:0.000001", "--pd-metrics", "--disable-tqdm"]
    options += ["--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
    status, report = run(server, tmp_path, *options)
    assert (status, report["good"], report["request_goodput"]) == (0, 0, 0.0)
    assert report["mean_output_len"] == 5 and report["mean_s_decode"] > 0
    assert [len(values) for values in report["phases_ms"].values()] == [4, 4, 12]
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["generated_texts"] == ["xxxxx"] * 4 and saved["output_lens"] == [5] * 4
    captured = capsys.readouterr()
    assert "output_len: output tokens" in captured.out and "tpot" not in captured.out
    assert "from the first token to the second: handoff" in captured.out
    assert captured.err == ""
    run(server, tmp_path, *options[:4], "--save-result", "--result-dir", str(tmp_path))
    assert len(list(tmp_path.glob("openai-infqps-fake-*.json"))) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--dataset-name sharegpt", "needs --dataset-path"),
        ("--config a.yaml --base-url http://x", "give one of them"),
        ("--speculative-config off", "needs --config FILE.yaml"),
        ("--random-range-ratio 1", "must be at least 0 and below 1"),
        ("--percentile-metrics ttft,tpott", "'tpott' is not one of ttft, tpot"),
        ("--goodput itl:3", "'itl' is not one of ttft, tpot, e2el"),
        ("--goodput ttft", "could not convert"),
        ("--metadata x", "'x' is not KEY=VALUE"),
        ("--hyperparameter-path nowhere.yaml", "No such file"),
        ("--extra-body []", "must be a JSON object"),
    ],
)
def test_mistakes(options, words, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        benchmark_serving.main(options.split())
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_servers_that_are_started(tmp_path, smollm2_path, capsys) -> None:
    """fdspec itself: its tokenizer, its usage and its speculation counters are understood."""
    file = tmp_path / "one.yaml"
    file.write_text(f"model: {smollm2_path}\nmax_model_len: 512\nmax_num_seqs: 2\nport: 1\n")
    output = tmp_path / "serving.json"
    options = ["--num-prompts", "2", "--max-concurrency", "2", "--num-warmups", "0", "--baseline"]
    options += ["--random-input-len", "40", "--random-output-len", "12", "--ignore-eos"]
    options += ["--config", str(file), "--speculative-config", json.dumps({"method": "ngram"})]
    options += ["--rounds", "1", "--output", str(output)]
    assert benchmark_serving.main(options) == 0
    report = json.loads(output.read_text())
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (80, 24)
    assert (report["compared"], report["different"]) == (2, 0)
    counts = report["speculation"]
    assert counts["draft_tokens"] >= counts["accepted_tokens"] >= 0
    assert "ready at http://127.0.0.1:" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="did you mean --max-num-seqs"):
        benchmark_serving.main([*options, "--launch-options", "--max-num-seq 3"])


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
