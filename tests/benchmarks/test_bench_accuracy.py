# SPDX-License-Identifier: Apache-2.0
"""bench_accuracy: divergences by hand, llama.cpp's file read back, and a run on the demo model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import bench_accuracy
from benchmarks.bench_accuracy import Scores, llama_scores
from benchmarks.kl_divergence import Predictions, ReferenceFile, stored_form
from benchmarks.peers.base import PeerError

PRINTED = """
Mean PPL(Q)                   :  14.500000 ±   0.250000
Mean    KLD:   0.001250 ±   0.000010
Maximum KLD:   1.500000
99.0%   KLD:   0.020000
Same top p: 97.500 ± 0.100 %
"""


def logits_of(*probabilities: list[float]) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32)) + np.float32(7)


def test_divergence_by_hand() -> None:
    truth = Predictions.of_logits(logits_of([0.5, 0.25, 0.25], [0.1, 0.8, 0.1]))
    other = Predictions.of_logits(logits_of([0.25, 0.5, 0.25], [0.1, 0.8, 0.1]))
    expected = [0.5 * np.log(2) - 0.25 * np.log(2), 0.0]
    np.testing.assert_allclose(truth.divergence_to(other), expected, atol=1e-6)
    assert truth.agrees_with(other).tolist() == [False, True]
    surprise = truth.surprise(np.array([0, 2], np.int32))
    np.testing.assert_allclose(surprise, [np.log(2), np.log(10)], rtol=1e-5)


def test_summary() -> None:
    scores = Scores([np.array([0.0, 1.0]), np.array([2.0, 5.0])], [np.array([True, False])] * 2)
    scores.surprises = [np.full(2, np.log(3.0), np.float32)] * 2
    summary = scores.summary()
    assert summary["mean_kl"] == 2.0
    assert (summary["mean_kl_of_windows"].low, summary["mean_kl_of_windows"].high) == (0.5, 3.5)
    assert (summary["same_top"], summary["max_kl"]) == (0.5, 5.0)
    assert summary["perplexity"] == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize("vocab", [8, 11])
def test_reference_file_is_what_llama_cpp_describes(tmp_path, vocab: int) -> None:
    path, windows, window = tmp_path / "reference.dat", 2, 6
    tokens = np.arange(windows * window, dtype=np.int32).reshape(windows, window)
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 6, (windows, 2, vocab)).astype(np.float32)
    predictions = [Predictions.of_logits(part) for part in logits]
    with ReferenceFile(path, tokens, vocab) as file:
        for part in predictions:
            file.write(part)
    data = path.read_bytes()
    assert data[:8] == b"_logits_"
    assert np.frombuffer(data, "<i4", 3, 8).tolist() == [window, vocab, windows]
    np.testing.assert_array_equal(np.frombuffer(data, "<i4", tokens.size, 20), tokens.ravel())
    padded = 4 + vocab + vocab % 2
    stored = np.frombuffer(data, "<u2", -1, 20 + tokens.nbytes).reshape(windows, 2, padded)
    head = np.ascontiguousarray(stored[..., :4]).view("<f4")
    restored = head[..., :1] * stored[..., 4 : 4 + vocab] + head[..., 1:]
    expected = np.stack([part.logprobs for part in predictions])
    clipped = np.maximum(expected, expected.max(axis=2, keepdims=True) - 16)
    np.testing.assert_allclose(restored, clipped, atol=2e-4)


def test_equal_logprobs_have_no_scale() -> None:
    assert stored_form(np.full((1, 4), -2.0, np.float32))[0, 4:].tolist() == [0, 0, 0, 0]


def fake_program(tmp_path, text: str):
    program = tmp_path / "llama-perplexity"
    program.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return program


def test_llama_scores_are_read(tmp_path) -> None:
    program = fake_program(tmp_path, PRINTED)
    scores = llama_scores(program, tmp_path / "a.gguf", tmp_path / "reference.dat", 512, 2)
    assert scores == {
        "mean_kl": 0.00125,
        "p99_kl": 0.02,
        "max_kl": 1.5,
        "same_top": 0.975,
        "perplexity": 14.5,
    }
    arguments = (tmp_path / "arguments").read_text()
    assert f"--kl-divergence --kl-divergence-base {tmp_path}/reference.dat" in arguments


def test_unexpected_output_is_shown(tmp_path) -> None:
    program = fake_program(tmp_path, "something else")
    with pytest.raises(PeerError, match=r"no mean_kl in what (.|\n)*something else"):
        llama_scores(program, tmp_path / "a.gguf", tmp_path / "reference.dat", 512, 2)


def test_formats_of_the_demo_model(tmp_path, smollm2_path, capsys) -> None:
    output = tmp_path / "accuracy.json"
    options = ["--model", str(smollm2_path), "--window", "32", "--num-windows", "3"]
    options += ["--quantizations", "as-stored", "wint8", "--output", str(output)]
    bench_accuracy.main(options)
    report = json.loads(output.read_text())
    formats = report["formats"]
    assert (report["num_tokens"], report["num_scored"]) == (96, 3 * 15)
    assert formats["none"]["mean_kl"] == 0.0
    assert formats["none"]["same_top"] == 1.0
    # The file holds 4-bit weights, so float32 differs from it by the rounding of activations only.
    assert 0 < formats["as-stored"]["mean_kl"] < formats["wint8"]["mean_kl"] < 0.05
    assert "as-stored" in capsys.readouterr().out


@pytest.mark.full
def test_types_of_the_cache_beside_each_other(tmp_path, smollm2_path) -> None:
    output = tmp_path / "accuracy.json"
    options = ["--model", str(smollm2_path), "--window", "32", "--num-windows", "2"]
    options += ["--quantizations", "none", "--kv-cache-dtype", "float32", "bfloat16", "int8"]
    bench_accuracy.main([*options, "--output", str(output)])
    formats = json.loads(output.read_text())["formats"]
    costs = [formats[f"none, {name} KV"]["mean_kl"] for name in ("float32", "bfloat16", "int8")]
    assert costs[0] == 0.0
    assert 0 < costs[1] < costs[2] < 0.01


def test_a_text_that_is_too_short(tmp_path, smollm2_path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("one two three")
    with pytest.raises(SystemExit, match="two windows of 512 are needed"):
        bench_accuracy.main(["--model", str(smollm2_path), "--text", str(text)])
