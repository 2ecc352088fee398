# SPDX-License-Identifier: Apache-2.0
"""What quantisation costs: predictions of each weight format beside those of the float32 model.

A text is cut into windows. In each, the tokens of the second half are predicted from all before
them, by the float32 model and by every format. Mean divergence (KL, in nats) and the share of
positions with the same most likely token say how alike the predictions are.

    python -m benchmarks.bench_accuracy --output accuracy.json --plot accuracy.png
    python -m benchmarks.bench_accuracy --quantizations none as-stored \\
        --kv-cache-dtype bfloat16 int8

llama.cpp is measured against the same float32 predictions, with GGUF files of the same weights:

    llama-quantize --allow-requantize MODEL.Q4_1.gguf MODEL.Q8_0.gguf Q8_0
    python -m benchmarks.bench_accuracy --llama-perplexity llama.cpp/bin/llama-perplexity \\
        --llama-models MODEL.Q4_1.gguf MODEL.Q8_0.gguf
"""

from __future__ import annotations

import argparse
import itertools
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.arguments import count
from benchmarks.datasets import CORPUS
from benchmarks.kl_divergence import Predictions, ReferenceFile
from benchmarks.offline_runner import OfflineRunner
from benchmarks.peers.base import PeerError
from benchmarks.peers.llama_cpp import run
from benchmarks.report import (
    Spread,
    add_report_options,
    load_pyplot,
    machine,
    percentile,
    print_table,
    save_plot,
    write_report,
)
from fdspec.tokenizer import load_tokenizer

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
AS_STORED = "as-stored"
REFERENCE = "none"
LLAMA_TIMEOUT_S = 3600.0
FORMATS = (AS_STORED, "wint4_a16", "wint8", "wint8_a16", "bfloat16")


@dataclass
class Scores:
    """What was found at all scored positions, window by window."""

    divergences: list[NDArray[np.float64]] = field(default_factory=list)
    agreements: list[NDArray[np.bool_]] = field(default_factory=list)
    surprises: list[NDArray[np.float32]] = field(default_factory=list)

    def add(
        self, truth: Predictions, predictions: Predictions, next_tokens: NDArray[np.int32]
    ) -> None:
        """Compare one window's predictions with the reference's."""
        self.divergences.append(truth.divergence_to(predictions))
        self.agreements.append(truth.agrees_with(predictions))
        self.surprises.append(predictions.surprise(next_tokens))

    def summary(self) -> dict[str, Any]:
        """Means over all positions, tails, and the spread of the windows' means."""
        divergences = np.concatenate(self.divergences)
        return {
            "mean_kl": float(divergences.mean()),
            "mean_kl_of_windows": Spread.of(float(window.mean()) for window in self.divergences),
            "p99_kl": percentile(divergences.tolist(), 99),
            "max_kl": float(divergences.max()),
            "same_top": float(np.concatenate(self.agreements).mean()),
            "same_top_of_windows": Spread.of(float(window.mean()) for window in self.agreements),
            "perplexity": float(np.exp(np.concatenate(self.surprises).mean(dtype=np.float64))),
        }


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL, help="folder or GGUF file")
    parser.add_argument("--quantizations", nargs="*", default=FORMATS, help="weight formats")
    parser.add_argument(
        "--kv-cache-dtype",
        nargs="+",
        default=["bfloat16"],
        help="of all but the reference; each format is measured with each of them",
    )
    parser.add_argument("--text", type=Path, default=CORPUS, help="default: bundled, 42,927 tokens")
    parser.add_argument("--window", type=count, default=512, help="tokens read at once")
    parser.add_argument("--num-windows", type=count, help="default: all of the text")
    parser.add_argument("--llama-perplexity", type=Path, help="path of the program")
    parser.add_argument("--llama-models", type=Path, nargs="*", default=(), help="GGUF files")
    parser.add_argument(
        "--reference-file", type=Path, help="keep the float32 predictions here (2 GB)"
    )
    add_report_options(parser)
    return parser.parse_args(arguments)


def read_windows(options: argparse.Namespace) -> NDArray[np.int32]:
    """[windows, tokens of a window] int32: the text from its start.

    Raises:
        SystemExit: the text is shorter than two windows.
    """
    tokens = load_tokenizer(options.model).encode(options.text.read_text())
    count = len(tokens) // options.window
    if options.num_windows is not None:
        count = min(count, options.num_windows)
    if count < 2:
        raise SystemExit(
            f"error: {options.text} has {len(tokens)} tokens; two windows of {options.window} are "
            "needed (--window, --num-windows)"
        )
    return np.array(tokens[: count * options.window], np.int32).reshape(count, options.window)


def compare_formats(
    options: argparse.Namespace, windows: NDArray[np.int32], reference_path: Path | None
) -> dict[str, Scores]:
    """Scores of every format; writes the reference's predictions if a path is given.

    All models are loaded at once, and each window goes through all of them.
    """
    window = windows.shape[1]
    # As llama.cpp does: predictions for the tokens after the middle.
    scored = slice(window // 2, window - 1)
    with ExitStack() as stack:
        reference = OfflineRunner(options.model, REFERENCE, window, "float32")
        stack.callback(reference.close)
        runners = {}
        for name, dtype in itertools.product(options.quantizations, options.kv_cache_dtype):
            quantization = None if name == AS_STORED else name
            runner = OfflineRunner(options.model, quantization, window, dtype)
            stack.callback(runner.close)
            runners[name if len(options.kv_cache_dtype) == 1 else f"{name}, {dtype} KV"] = runner
        file = None
        if reference_path is not None:
            file = ReferenceFile(reference_path, windows, reference.config.vocab_size)
            stack.enter_context(file)
        scores = {name: Scores() for name in (REFERENCE, *runners)}
        for tokens in tqdm(windows, desc="windows"):
            next_tokens = tokens[window // 2 + 1 :]
            truth = Predictions.of_logits(reference.logits(tokens)[scored])
            if file is not None:
                file.write(truth)
            scores[REFERENCE].add(truth, truth, next_tokens)
            for name, runner in runners.items():
                predictions = Predictions.of_logits(runner.logits(tokens)[scored])
                scores[name].add(truth, predictions, next_tokens)
    return scores


def llama_scores(
    program: Path, model: Path, reference_path: Path, window: int, num_threads: int
) -> dict[str, Any]:
    """What llama-perplexity says of a GGUF file against the reference.

    Raises:
        PeerError: it fails, or does not print what is expected.
    """
    command = [str(program), "-m", str(model), "-t", str(num_threads), "-c", str(window)]
    command += ["-b", str(window), "--kl-divergence", "--kl-divergence-base", str(reference_path)]
    printed = run("llama.cpp", command, LLAMA_TIMEOUT_S)
    patterns = {
        "mean_kl": r"Mean\s+KLD:\s+(\S+)",
        "p99_kl": r"99\.0%\s+KLD:\s+(\S+)",
        "max_kl": r"Maximum KLD:\s+(\S+)",
        "same_top": r"Same top p:\s+(\S+)",
        "perplexity": r"Mean PPL\(Q\)\s+:\s+(\S+)",
    }
    result = {}
    for name, pattern in patterns.items():
        found = re.search(pattern, printed)
        if found is None:
            raise PeerError(f"llama.cpp: no {name} in what {program} printed:\n{printed[-2000:]}")
        result[name] = float(found.group(1))
    result["same_top"] /= 100
    return result


def print_report(report: dict[str, Any]) -> None:
    """One line for each format."""
    print(
        f"\n{report['model']}: {report['num_scored']} of {report['num_tokens']} tokens scored, "
        f"windows of {report['window']}"
    )
    rows = []
    for name, entry in report["formats"].items():
        spread = entry.get("mean_kl_of_windows")
        rows.append(
            [
                name,
                f"{entry['mean_kl']:.6f}",
                f"{spread.low:.6f} .. {spread.high:.6f}" if spread else "",
                f"{entry['p99_kl']:.5f}",
                f"{entry['max_kl']:.4f}",
                f"{100 * entry['same_top']:.2f}",
                f"{entry['perplexity']:.4f}",
            ]
        )
    print_table(
        ["format", "mean KL", "of windows", "99 %", "max", "same top token, %", "perplexity"], rows
    )


def plot(scores: dict[str, Scores], path: Path) -> None:
    """For each format, which share of the positions diverges by more."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, score in scores.items():
        if name == REFERENCE:
            continue
        ordered = np.sort(np.concatenate(score.divergences))
        shares = 100 * (1 - np.arange(len(ordered)) / len(ordered))
        axes.plot(np.maximum(ordered, 1e-9), shares, label=name)
    axes.set(xscale="log", xlabel="KL divergence to float32, nats", ylabel="% of positions above")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend()
    save_plot(figure, path)


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Scores]]:
    """The report, and the scores that it was made from."""
    from fdspec.ops import num_threads

    windows = read_windows(options)
    with tempfile.TemporaryDirectory() as folder:
        reference_path = options.reference_file
        if options.llama_perplexity and reference_path is None:
            reference_path = Path(folder) / "reference.dat"
        scores = compare_formats(options, windows, reference_path)
        formats = {name: score.summary() for name, score in scores.items()}
        if options.llama_perplexity:
            for model in options.llama_models:
                formats[f"llama.cpp {model.name}"] = llama_scores(
                    options.llama_perplexity, model, reference_path, options.window, num_threads()
                )
    report = {
        "machine": machine(),
        "model": str(options.model),
        "text": options.text.name,
        "window": options.window,
        "num_tokens": windows.size,
        "num_scored": len(windows) * len(range(options.window // 2, options.window - 1)),
        "kv_cache_dtype": options.kv_cache_dtype,
        "formats": formats,
    }
    return report, scores


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write, plot."""
    options = parse_arguments(arguments)
    try:
        report, scores = measure(options)
    except PeerError as error:
        raise SystemExit(f"error: {error}") from None
    print_report(report)
    write_report(options, report, lambda path: plot(scores, path))


if __name__ == "__main__":
    main()
