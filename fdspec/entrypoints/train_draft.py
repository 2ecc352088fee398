# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.train_draft`: train a draft head for a model on its own answers.

Owns the command line; fdspec.training does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdspec.core import ConfigError, FdspecError
from fdspec.models import resolve_model
from fdspec.ops import set_num_threads
from fdspec.utils.logging import configure_logging

if TYPE_CHECKING:
    from fdspec.training.job import TrainingJob

_METHODS = ("mtp",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    arguments = _parser().parse_args(argv)
    configure_logging("train_draft")
    _prepare_libraries(arguments.num_threads)
    try:
        job = _job(arguments)
        # Only now: it imports paddle, whose threads and code paths are chosen when it is loaded.
        from fdspec.training.job import run_job

        result = run_job(job)
    except FdspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    print(f"{result.num_steps} steps on {result.data_tokens} answer tokens; {result.acceptance}")
    print(f'head in {job.output}: --speculative-config \'{{"method": "mtp", ', end="")
    print(f'"model": "{job.output}", "num_speculative_tokens": {job.settings.num_model_steps}}}\'')
    return 0


def _prepare_libraries(num_threads: int) -> None:
    """Before paddle is imported."""
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    # Paddle's matrix library takes its AVX2 path on processors of other makers only when told so;
    # on Intel's it takes what is best itself.
    if "GenuineIntel" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    set_num_threads(num_threads)


def _job(arguments: argparse.Namespace) -> TrainingJob:
    from fdspec.training.job import TrainingJob
    from fdspec.training.settings import TrainingSettings

    budget_s = None
    if arguments.steps is None:
        hours = 1.0 if arguments.hours is None else arguments.hours
        budget_s = hours * 3600 if arguments.minutes is None else arguments.minutes * 60
    if arguments.method not in _METHODS:
        raise ConfigError(
            f"--method must be one of {', '.join(_METHODS)}, got {arguments.method!r}"
        )
    return TrainingJob(
        model=Path(resolve_model(arguments.model)),
        quantization=arguments.quantization,
        data=arguments.data,
        output=arguments.output,
        recordings=arguments.recordings,
        budget_s=budget_s,
        num_steps=arguments.steps,
        data_tokens=arguments.data_tokens,
        num_held_out=arguments.held_out,
        vocab_size_draft=arguments.vocab_size_draft,
        settings=TrainingSettings(
            num_model_steps=arguments.num_model_steps,
            learning_rate=arguments.learning_rate,
            tokens_per_batch=arguments.batch_tokens,
            seed=arguments.seed,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fdspec.entrypoints.train_draft",
        description="Train a draft head for a model on the model's own answers. A run that was "
        "stopped goes on when it is started again. See docs/training_draft_heads.md.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="folder, .gguf file or hub id of the model to draft for")
    add("--method", default="mtp", help="kind of head")
    add("--data", default="self", help="JSONL file of prompts, or self: the model writes them")
    add("--output", required=True, type=Path, help="folder of the head")
    add("--recordings", type=Path, help="folder of recorded answers; default: in --output")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=_positive(float), help="time for all of it (default: 1)")
    length.add_argument("--minutes", type=_positive(float), help="the same in minutes")
    length.add_argument("--steps", type=_positive(int), help="training steps, whatever the time")
    add("--data-tokens", type=_positive(int), default=1_000_000, help="answer tokens to record")
    add("--held-out", type=_positive(int), default=64, help="answers kept for evaluation")
    add("--num-model-steps", type=_positive(int), default=3, help="drafts in a row to learn")
    add("--vocab-size-draft", type=_positive(int), help="draft only the most frequent tokens")
    add("--batch-tokens", type=_positive(int), default=900, help="least tokens of a step")
    add("--learning-rate", type=_positive(float), default=3e-3, help="highest learning rate")
    add("--quantization", help="format of the model's weights, as it is served")
    add("--seed", type=int, default=0, help="of prompts, draws and the order of the data")
    add("--num-threads", type=_positive(int), default=os.cpu_count() or 1, help="CPU threads")
    return parser


def _positive(kind: type) -> Callable[[str], Any]:
    """Reads a number above 0; argparse names the kind in its messages."""

    def read(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    read.__name__ = kind.__name__
    return read


if __name__ == "__main__":
    sys.exit(main())
