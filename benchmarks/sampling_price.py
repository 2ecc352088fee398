# SPDX-License-Identifier: Apache-2.0
"""What sampling costs beside greedy decoding, and where the time of a step goes.

Both decode the same prompts without drafts, in turn in each round, so that a step of one differs
from a step of the other in nothing but how the token is chosen. Used by bench_latency.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from tqdm import tqdm

from benchmarks.report import Spread, print_table
from fdspec import SamplingParams
from fdspec.config import config_from_options
from fdspec.core import Submit
from fdspec.engine.build import build_engine, with_local_model
from fdspec.engine.engine import Engine
from fdspec.ops import StepProgram, set_num_threads
from fdspec.scheduler.topic import InProcessTopic
from fdspec.tokenizer import load_tokenizer

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_draft_tokens=0, seed=1)
LAWS = {
    "T 0.8, top_p 0.95, repetition 1.1": replace(
        GREEDY, temperature=0.8, top_p=0.95, repetition_penalty=1.1
    ),
    "T 1": replace(GREEDY, temperature=1.0),
    "T 1, top_k 50": replace(GREEDY, temperature=1.0, top_k=50),
    # So flat that thousands of tokens are possible at every position.
    "T 1.5, top_p 0.95": replace(GREEDY, temperature=1.5, top_p=0.95),
}


@dataclass(frozen=True)
class StepTimes:
    """Microseconds of a decoding step, medians over a run.

    Attributes:
        step: all of it.
        model: inside the step program.
        verify: choosing tokens and the stop walk.
        rest: everything else: proposing, planning, flattening, applying, emitting.
    """

    step: float
    model: float
    verify: float
    rest: float

    @property
    def framework_share(self) -> float:
        """The part of a step that is not the model; with greedy decoding this is all Python."""
        return (self.verify + self.rest) / self.step


@dataclass(frozen=True)
class SamplingPrice:
    """One law beside greedy decoding, over rounds.

    Attributes:
        step_ratio: sampled step over greedy step.
        step_us: of the sampled steps; and its parts.
        model_us: see StepTimes.
        verify_us: see StepTimes.
        rest_us: see StepTimes.
        framework_share: see StepTimes.
    """

    step_ratio: Spread
    step_us: Spread
    model_us: Spread
    verify_us: Spread
    rest_us: Spread
    framework_share: Spread


@dataclass
class _Clock:
    """Adds up the time of the functions that it watches, by name."""

    now: Callable[[], float]
    spent_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def watching(self, owner: object, attribute: str, name: str) -> Iterator[None]:
        """Count the calls of owner.attribute while the context lasts."""
        function = getattr(owner, attribute)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = self.now()
            result = function(*args, **kwargs)
            self.spent_s[name] = self.spent_s.get(name, 0.0) + self.now() - start_s
            return result

        setattr(owner, attribute, timed)
        try:
            yield
        finally:
            setattr(owner, attribute, function)


class StepTimer:
    """An engine whose decoding steps are timed part by part.

    Args:
        config: YAML file.
        batch_size: most sequences at a time.
        num_threads: CPU threads; None as configured.
        counts_cpu_time: processor time of the process instead of the time that passes. With one
            thread other programs then hardly matter.
    """

    def __init__(
        self, config: str, batch_size: int, num_threads: int | None, *, counts_cpu_time: bool
    ) -> None:
        options = {"max_num_seqs": batch_size}
        settings = with_local_model(config_from_options(options, config).config)
        self.tokenizer = load_tokenizer(settings.model.tokenizer or settings.model.model, None)
        self._topic = InProcessTopic()
        built = build_engine(settings, self._topic)
        if num_threads is not None:
            set_num_threads(num_threads)
        self._engine: Engine = built.engine
        self.close = built.close
        self._clock = _Clock(time.process_time if counts_cpu_time else time.perf_counter)

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Tokens of a conversation."""
        text = self.tokenizer.apply_chat_template(messages, True)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, prompts: Sequence[list[int]], params: SamplingParams) -> StepTimes:
        """Decode all prompts at once; steps that compute prompts do not count."""
        for index, prompt in enumerate(prompts):
            self._topic.send(Submit(str(index), tuple(prompt), params))
        now, spent_s = self._clock.now, self._clock.spent_s
        steps: list[tuple[float, ...]] = []
        started: set[str] = set()
        watching = self._clock.watching
        with (
            watching(StepProgram, "run", "model"),
            watching(self._engine.verifier, "verify", "verify"),
        ):
            while True:
                spent_s.clear()
                start_s = now()
                events = self._engine.step()
                step_s = now() - start_s
                if len(started) == len(events) == len(prompts):
                    model_s, verify_s = spent_s["model"], spent_s["verify"]
                    steps.append((step_s, model_s, verify_s, step_s - model_s - verify_s))
                started.update(event.request_id for event in events)
                if any(event.finish is not None for event in events):
                    break
        while self._engine.scheduler.has_work():
            self._engine.step()
        self._topic.receive()
        return StepTimes(*(1e6 * statistics.median(part) for part in zip(*steps, strict=True)))


def measure_sampling(
    timer: StepTimer, conversations: Sequence[Any], batch_size: int, num_tokens: int, rounds: int
) -> dict[str, SamplingPrice]:
    """Each law beside greedy decoding, whose own price is 1; also "greedy" itself.

    Args:
        timer: with room for batch_size sequences.
        conversations: as chat messages; each round takes other ones.
        batch_size: sequences at a time.
        num_tokens: tokens of each answer.
        rounds: each gives one figure of each law.
    """
    laws = {"greedy": GREEDY, **LAWS}
    times: dict[str, list[StepTimes]] = {name: [] for name in laws}
    for index in tqdm(range(rounds), desc=f"sampling, batch {batch_size}", file=sys.stderr):
        chosen = [
            conversations[(index * batch_size + i) % len(conversations)] for i in range(batch_size)
        ]
        prompts = [timer.prompt(messages) for messages in chosen]
        order = list(laws)[:: 1 if index % 2 == 0 else -1]
        for name in order:
            params = replace(laws[name], max_tokens=num_tokens)
            times[name].append(timer.decode(prompts, params))
    return {
        name: SamplingPrice(
            Spread.of(a.step / b.step for a, b in zip(own, times["greedy"], strict=True)),
            Spread.of(t.step for t in own),
            Spread.of(t.model for t in own),
            Spread.of(t.verify for t in own),
            Spread.of(t.rest for t in own),
            Spread.of(t.framework_share for t in own),
        )
        for name, own in times.items()
    }


def print_sampling(prices: dict[int, dict[str, SamplingPrice]]) -> None:
    """A line for each law and batch size."""
    print()
    print_table(
        ["batch: law", "step / greedy step", "step, us", "model", "verify", "rest", "not model, %"],
        [
            [
                f"{batch_size}: {name}",
                price.step_ratio.short(),
                price.step_us.short(),
                *(f"{s.median:.0f}" for s in (price.model_us, price.verify_us, price.rest_us)),
                price.framework_share.times(100).short(),
            ]
            for batch_size, laws in prices.items()
            for name, price in laws.items()
        ],
    )
