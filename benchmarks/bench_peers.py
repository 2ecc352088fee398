# SPDX-License-Identifier: Apache-2.0
"""fdspec beside llama.cpp on the same GGUF file, interleaved in one run.

Installs nothing: give it the path of a `llama-bench` binary built for this machine. Each round
measures one peer, then the other, so that a machine whose speed drifts favours neither.

    python -m benchmarks.bench_peers --llama-bench path/to/llama-bench --output peers.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from benchmarks.bench_latency import measure_decode, measure_prefill
from benchmarks.report import Spread
from fdspec import LLM


def llama_rates(binary: Path, model: Path, threads: int, arguments: list[str]) -> list[float]:
    """Tokens per second that one llama-bench call reports, one figure a test.

    Raises:
        subprocess.CalledProcessError: if llama-bench fails; its message is on stderr.
    """
    command = [str(binary), "-m", str(model), "-t", str(threads), "-o", "json", *arguments]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return [entry["avg_ts"] for entry in json.loads(finished.stdout)]


def main() -> None:
    """Measure in rounds, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/yaml/quickstart.yaml", help="YAML file")
    parser.add_argument("--llama-bench", type=Path, required=True, help="peer's binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    llm = LLM(config=arguments.config, speculative_config=None)
    model = Path(llm.model)
    prompts, context, output = (128, 512), 128, 128
    figures: dict[str, dict[str, list[float]]] = {"fdspec": {}, "llama.cpp": {}}
    for _ in range(arguments.rounds):
        decode = measure_decode(llm, context, output, rounds=1)
        figures["fdspec"].setdefault(f"decode {output} after {context}", []).append(decode.median)
        rate = llama_rates(
            arguments.llama_bench,
            model,
            llm.num_threads,
            ["-p", "0", "-n", str(output), "-d", str(context), "-r", "2"],
        )
        figures["llama.cpp"].setdefault(f"decode {output} after {context}", []).append(rate[0])
        for num_tokens in prompts:
            prefill = measure_prefill(llm, num_tokens, rounds=1)
            figures["fdspec"].setdefault(f"prefill {num_tokens}", []).append(prefill.median)
            rate = llama_rates(
                arguments.llama_bench,
                model,
                llm.num_threads,
                ["-p", str(num_tokens), "-n", "0", "-r", "2"],
            )
            figures["llama.cpp"].setdefault(f"prefill {num_tokens}", []).append(rate[0])

    print(f"{model.name}, {llm.num_threads} threads, tokens/s, median (low .. high)")
    report: dict[str, object] = {"model": model.name, "num_threads": llm.num_threads}
    for name, ours in figures["fdspec"].items():
        theirs = figures["llama.cpp"][name]
        ratio = Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])
        rows = {"fdspec": Spread.of(ours), "llama.cpp": Spread.of(theirs), "ratio": ratio}
        for who, spread in rows.items():
            print(f"{name:24s} {who:10s} {spread}")
        report[name] = {who: asdict(spread) for who, spread in rows.items()}
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
