# SPDX-License-Identifier: Apache-2.0
"""Engine: the step that everything happens in, and the loop around it.

Knows the parts by their Protocols only; `build.py` puts them together. Values pass through a step
one way; a stage that fails ends the engine, because no later step could be trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fdspec.core import Abort, ClearCache, TokenEvent
from fdspec.core.protocols import KVHandoff, ModelRunner, Proposer, Scheduler, Verifier
from fdspec.engine.stats import EngineMonitor
from fdspec.scheduler.topic.interface import EngineTopic
from fdspec.scheduler.topic.messages import Cleared, Fatal

MAX_COMMANDS_PER_STEP = 256
# How soon an engine looks again if all that it has waits for blocks or for other processes.
_LOOK_S = 0.001


class Engine:
    """Poll, add, settle, propose, plan, begin, execute, verify, commit, observe, apply, end, emit.

    Settle, begin and end are the handoff's, which does nothing where one engine does both jobs.
    """

    def __init__(
        self,
        topic: EngineTopic,
        scheduler: Scheduler,
        proposer: Proposer,
        *,
        runner: ModelRunner,
        verifier: Verifier,
        monitor: EngineMonitor,
        handoff: KVHandoff,
    ) -> None:
        self.topic = topic
        self.scheduler = scheduler
        self.proposer = proposer
        self.runner = runner
        self.verifier = verifier
        self.monitor = monitor
        self.handoff = handoff
        self._can_run = True

    def step(self, idle_s: float = 0.0) -> list[TokenEvent]:
        """One pass through all stages.

        Args:
            idle_s: how long to wait for a command if there is nothing to compute.

        Returns:
            The events, which the topic has been given too.
        """
        wait_s = idle_s
        if self.scheduler.has_work():
            wait_s = 0.0 if self._can_run else min(_LOOK_S, idle_s)
        events: list[TokenEvent] = []
        for command in self.topic.poll(MAX_COMMANDS_PER_STEP, wait_s):
            if isinstance(command, ClearCache):
                num_blocks = self.scheduler.forget_cached()
                self.topic.publish(Cleared(command.request_id, num_blocks))
            else:
                if not isinstance(command, Abort):
                    self.handoff.hold(command)
                events += self.scheduler.add(command)
        events += self.scheduler.settle(self.handoff.news())
        started_s = time.perf_counter()
        drafts = self.proposer.propose(self.scheduler.draft_contexts())
        plan = self.scheduler.plan(drafts)
        early = self.handoff.begin(plan)
        if early:
            # Not after the step: others read while it runs.
            self.topic.emit(early)
        self._can_run = bool(plan.sequences)
        applied: list[TokenEvent] = []
        told: list[TokenEvent] = []
        if plan.sequences:
            output = self.runner.execute(plan)
            verdicts = self.verifier.verify(plan, output)
            self.runner.commit(plan, verdicts)
            self.proposer.observe(plan, output, verdicts)
            applied = self.scheduler.apply(plan, verdicts)
            self.scheduler.learn(plan, 1000.0 * (time.perf_counter() - started_s))
            self.monitor.count(plan, applied)
            departures = self.scheduler.take_departures()
            told = self.handoff.end(plan, applied, departures)
        ended = [
            (event.request_id, event.choice)
            for event in (*events, *applied)
            if event.finish is not None
        ]
        events += told
        self.proposer.forget(ended)
        self.verifier.forget(ended)
        self.handoff.forget(ended)
        self.topic.emit(events)
        return early + events

    def run(
        self,
        should_stop: Callable[[], bool],
        *,
        idle_s: float = 0.2,
        stats_interval_s: float = 1.0,
    ) -> None:
        """Step until should_stop says so; tell the topic how the engine stands meanwhile.

        Args:
            should_stop: asked after every step.
            idle_s: longest wait for a command, and so the longest delay of should_stop.
            stats_interval_s: time between statistics.

        Raises:
            Exception: whatever a stage raised; the topic has been told that the engine is at its
                end, so that no request waits for ever.
        """
        next_stats_s = 0.0
        was_busy = True
        try:
            while not should_stop():
                self.step(idle_s)
                is_busy = self.scheduler.has_work()
                if was_busy and not is_busy:
                    self.monitor.check()
                    next_stats_s = 0.0
                was_busy = is_busy
                if time.monotonic() >= next_stats_s:
                    self.topic.publish(self.monitor.stats())
                    next_stats_s = time.monotonic() + stats_interval_s
        except Exception as error:
            self.topic.publish(Fatal(f"the engine failed: {type(error).__name__}: {error}"))
            raise
