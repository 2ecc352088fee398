# SPDX-License-Identifier: Apache-2.0
"""Figures of a load: as a report for JSON, as tables, and as a plot. Used by benchmark_serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load import LoadResult, latencies_ms, num_good, summarise
from benchmarks.report import Spread, load_pyplot, percentile, print_table, save_plot

LABELS = {
    "ttft": "time to first token, ms",
    "tpot": "time per output token after the first, ms",
    "itl": "time between events, ms",
    "e2el": "time of the whole request, ms",
    "s_decode": "tokens a second after the first",
    "input_len": "prompt tokens",
    "output_len": "output tokens",
    "cached_tokens": "prompt tokens from a cache",
}
PHASES = {
    "first_token": "to the first token: queue and prefill",
    "second_token": "from the first token to the second: handoff and a step of decode",
    "further_tokens": "between later events: decode",
}
# Higher is better for the first, lower for the others.
COMPARED = {
    "output_throughput": "output tokens a second",
    "mean_ttft_ms": "mean time to first token, ms",
    "mean_tpot_ms": "mean time per output token, ms",
    "p99_e2el_ms": "99th percentile of the whole request, ms",
}


def values_of(result: LoadResult) -> dict[str, list[float]]:
    """All values of each figure of LABELS."""
    done = result.completed
    return {
        **latencies_ms(result),
        "s_decode": [answer.output_tokens_per_s for answer in done if answer.num_output > 1],
        "input_len": [float(answer.num_input) for answer in done],
        "output_len": [float(answer.num_output) for answer in done],
        "cached_tokens": [float(answer.num_cached) for answer in done],
    }


def figures(
    result: LoadResult, percentiles: Sequence[float], goodput_ms: Mapping[str, float]
) -> dict[str, Any]:
    """What a load came to, under the names of vLLM's and FastDeploy's benchmarks.

    Args:
        result: of the load.
        percentiles: of every figure.
        goodput_ms: limits; empty for none.
    """
    report = summarise(result, percentiles)
    for name, values in values_of(result).items():
        if name in latencies_ms(result):
            continue
        report[f"mean_{name}"] = sum(values) / max(len(values), 1)
        report[f"median_{name}"] = percentile(values, 50)
        for share in percentiles:
            report[f"p{share:g}_{name}"] = percentile(values, share)
    if goodput_ms:
        good = num_good(result, goodput_ms)
        report |= {"good": good, "request_goodput": good / result.duration_s}
    return report


def phases(result: LoadResult) -> dict[str, list[float]]:
    """Milliseconds of what prefill and decode do one after the other, of each request."""
    done = result.completed
    return {
        "first_token": [1000 * answer.first_token_s for answer in done],
        "second_token": [1000 * answer.gaps_s[0] for answer in done if answer.gaps_s],
        "further_tokens": [1000 * gap_s for answer in done for gap_s in answer.gaps_s[1:]],
    }


def details(result: LoadResult) -> dict[str, list[Any]]:
    """Every request, in the order of their sending."""
    answers = result.answers
    return {
        "input_lens": [answer.num_input for answer in answers],
        "output_lens": [answer.num_output for answer in answers],
        "ttfts": [answer.first_token_s for answer in answers],
        "itls": [answer.gaps_s for answer in answers],
        "e2els": [answer.latency_s for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def print_figures(
    report: Mapping[str, Any],
    result: LoadResult,
    metrics: Sequence[str],
    percentiles: Sequence[float],
) -> None:
    """Throughput, then a line for each figure with its least and greatest value."""
    for name in ("completed", "failed", "total_input_tokens", "total_output_tokens"):
        print(f"{name:28s} {report[name]}")
    for name in ("duration", "request_throughput", "output_throughput", "total_token_throughput"):
        unit = "(s)" if name == "duration" else "(1/s)"
        print(f"{name + ' ' + unit:32s} {report[name]:.2f}")
    if "good" in report:
        print(f"{'request_goodput (1/s)':32s} {report['request_goodput']:.2f} ({report['good']})")
    values = values_of(result)
    rows = {f"{name}: {LABELS[name]}": values[name] for name in metrics if values[name]}
    print_values("figure", rows, percentiles)


def print_values(head: str, rows: Mapping[str, list[float]], percentiles: Sequence[float]) -> None:
    """Mean, median, percentiles, least and greatest of each list."""
    columns = ["mean", "median", *(f"p{share:g}" for share in percentiles), "least", "greatest"]
    print_table(
        [head, *columns],
        [
            [
                name,
                *(
                    f"{value:.2f}"
                    for value in (
                        sum(values) / len(values),
                        percentile(values, 50),
                        *(percentile(values, share) for share in percentiles),
                        min(values),
                        max(values),
                    )
                ),
            ]
            for name, values in rows.items()
            if values
        ],
    )


def print_speculation(counts: Mapping[str, Any] | None) -> None:
    """Drafts and how many were accepted, by position."""
    if not counts:
        return
    print(
        f"drafts: {counts.get('draft_tokens', 0):.0f} tokens drafted, "
        f"{counts.get('accepted_tokens', 0):.0f} accepted "
        f"({100 * counts['acceptance_rate']:.1f} %)"
    )
    if shares := counts["acceptance_by_position"]:
        print("accepted by position, %: " + " ".join(f"{100 * share:.1f}" for share in shares))


def print_handoffs(counts: Mapping[str, float] | None) -> None:
    """How KV caches came from prefill to decode."""
    if counts:
        print(
            f"handoffs: {counts['loaded']:.0f}, of {counts['mean_megabytes']:.2f} MB in "
            f"{counts['mean_ms']:.1f} ms on average; {counts['failed']:.0f} prompts computed again"
        )


def print_comparison(rounds: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Figures with and without speculation; ratios are taken inside a round.

    Args:
        rounds: reports with and without, of each round.
    """
    rows = []
    for name, label in COMPARED.items():
        with_it, without = ([pair[index][name] for pair in rounds] for index in (0, 1))
        ratio = ratios(rounds, name)
        rows.append(
            [
                label,
                Spread.of(with_it).short(),
                Spread.of(without).short(),
                ratio.short() if ratio else "-",
            ]
        )
    print_table(["figure", "with speculation", "without", "ratio"], rows)


def ratios(
    rounds: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str
) -> Spread | None:
    """With speculation over without, round by round; None if a value is 0."""
    pairs = [(with_it[name], without[name]) for with_it, without in rounds]
    if any(not value for pair in pairs for value in pair):
        return None
    return Spread.of(with_it / without for with_it, without in pairs)


def plot(results: Mapping[str, LoadResult], path: Path) -> None:
    """For each latency, which share of the requests stayed below it.

    Args:
        results: by the name of their curve.
        path: of the image.
    """
    pyplot = load_pyplot()
    names = list(latencies_ms(next(iter(results.values()))))
    figure, panels = pyplot.subplots(1, len(names), figsize=(4 * len(names), 3.5))
    for axes, name in zip(panels, names, strict=True):
        for label, result in results.items():
            ordered = sorted(latencies_ms(result)[name])
            shares = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
            axes.step(ordered, shares, where="post", label=label)
        label, _, unit = LABELS[name].rpartition(", ")
        axes.set(title=label, xlabel=unit, ylabel="% at most this long", ylim=(0, 100))
        axes.grid(alpha=0.3)
        if len(results) > 1:
            axes.legend()
    figure.tight_layout()
    save_plot(figure, path)
