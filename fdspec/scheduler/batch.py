# SPDX-License-Identifier: Apache-2.0
"""BatchScheduler: continuous batching of decode rows, prompt chunks and draft rows.

`plan` alone spends the token budget, `apply` alone turns verdicts into state; requests and blocks
are kept by `Residents`. Knows no model, no tensor and no proposer. Called by `Engine.step`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from fdspec.core import (
    Abort,
    ConfigError,
    Draft,
    DraftContext,
    FinishReason,
    Request,
    SequenceId,
    SequencePlan,
    Status,
    StepPlan,
    Submit,
    TokenBuffer,
    TokenEvent,
    TokenLogprob,
    Verdict,
)
from fdspec.core.handoff import Departure, HandoffNews
from fdspec.core.protocols import BlockPool
from fdspec.kv.prefix_index import root_digest
from fdspec.scheduler.admission import reason_to_refuse
from fdspec.scheduler.draft_rows import DraftRows
from fdspec.scheduler.draft_stats import draft_stats
from fdspec.scheduler.handing_over import HandingOver
from fdspec.scheduler.neighbours import sharers_together
from fdspec.scheduler.prompt_rows import PrefillLimits, PromptRows
from fdspec.scheduler.residents import Residents
from fdspec.scheduler.swapping import Swapping

logger = logging.getLogger(__name__)

_FIRST_COME = PrefillLimits()


class BatchScheduler:
    """Served by priority, then by arrival. Implements `core.protocols.Scheduler`.

    * So that nobody starves, every 16th admission goes to who came first (`WaitingQueue`).
    * A request is admitted when blocks for all its known tokens are free, and takes them at once;
      nobody overtakes a request that waits for blocks.
    * Every decoding sequence has one row in every step; prompts share what is left, in chunks
      (`PromptRows`); drafts get fair shares, at most half of what prompts could use (`DraftRows`).
    * When a decoding sequence needs a block and none is free, the request that comes last gives
      all of its blocks back and is computed again later, with prompt and output as its tokens. The
      first one always makes progress, so that every request ends.
    * Drafts take free blocks only, and give back at once what was not accepted.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        vocab_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_draft_rows: int = 64,
        prefill: PrefillLimits = _FIRST_COME,
        disable_drafts_at: int | None = None,
        fair_share_by_user: bool = False,
        swapping: Swapping | None = None,
        hands_over: bool = False,
        opens_early: bool = False,
    ) -> None:
        """Start empty.

        Args:
            pool: the KV cache's blocks; nobody else may take any.
            vocab_size: token ids 0 .. vocab_size - 1 exist.
            max_num_seqs: most sequences in a step.
            max_num_batched_tokens: most rows in a step, at least max_num_seqs.
            max_model_len: most tokens of a sequence, prompt and output together.
            max_draft_rows: most draft rows of a sequence in a step.
            prefill: what prompts may take of a step; if they are not chunked, a step must be able
                to hold the longest: max_num_batched_tokens is then at least max_model_len.
            disable_drafts_at: no drafts while at least so many sequences run; None is no limit.
            fair_share_by_user: within a priority, serve users by turns instead of by arrival.
            swapping: where preempted requests may be kept; None computes them again.
            hands_over: let every sequence go on elsewhere after its next token.
            opens_early: let others read its blocks while its prompt is computed.

        Raises:
            ConfigError: the limits exclude each other.
        """
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs "
                f"({max_num_seqs}), and that at least 1, so that every running sequence has a row "
                "in every step"
            )
        assert prefill.chunked or max_num_batched_tokens >= max_model_len
        self._pool = pool
        self._swapping = swapping or Swapping(0, 0.0)
        self._residents = Residents(
            pool,
            max_num_seqs,
            swapping=self._swapping,
            fair_share_by_user=fair_share_by_user,
            opens_early=hands_over and opens_early,
        )
        self._vocab_size = vocab_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._prompt_rows = PromptRows(self._residents, prefill)
        self._draft_rows = DraftRows(
            self._residents,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            max_draft_rows=max_draft_rows,
            disable_drafts_at=disable_drafts_at,
        )
        self._handing_over = HandingOver(self._residents, is_on=hands_over)
        self._prompt_logprobs: dict[SequenceId, list[TokenLogprob | None]] = {}
        self._step = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks. Does not modify."""
        return len(self._residents.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission. Does not modify."""
        return len(self._residents) - len(self._residents.running)

    @property
    def num_preempted(self) -> int:
        """Times that a sequence lost its blocks, since the start. Does not modify."""
        return self._residents.num_preempted

    @property
    def num_swapped(self) -> int:
        """Of those, times that its keys and values were kept outside the cache."""
        return self._swapping.num_swapped

    @property
    def num_prefix_queries(self) -> int:
        """Prompt tokens that were looked up in the prefix cache, since the start."""
        return self._residents.sharing.num_queried

    @property
    def num_prefix_hits(self) -> int:
        """Of those, tokens that were found."""
        return self._residents.sharing.num_hit

    def forget_cached(self) -> int:
        """Empty the prefix cache; returns the blocks in which something could be found.

        Requests that run are not affected.
        """
        num_cached = self._pool.num_cached
        self._residents.forget_cached()
        return num_cached

    def settle(self, news: HandoffNews) -> list[TokenEvent]:
        """Go on with what was loaded, and take back blocks that were lent."""
        return self._handing_over.settle(news)

    def take_departures(self) -> list[Departure]:
        """Sequences that the last `apply` handed over, with the blocks that are lent."""
        return self._handing_over.take_departures()

    def has_work(self) -> bool:
        """True if a step would do something. Does not modify."""
        return len(self._residents) > 0

    def check(self) -> None:
        """Raise AssertionError if requests and blocks do not agree. Does not modify."""
        self._residents.check()

    def add(self, command: Submit | Abort) -> list[TokenEvent]:
        """Take a command; the events are refusals and aborts.

        A Submit whose id is still in service is a repeated delivery and changes nothing.
        """
        if isinstance(command, Abort):
            return [self._abort(r) for r in self._residents.choices_of(command.request_id)]
        if self._residents.choices_of(command.request_id):
            logger.warning("request %r is already in service; ignored", command.request_id)
            return []
        reason = reason_to_refuse(
            command,
            max_model_len=self._max_model_len,
            vocab_size=self._vocab_size,
            num_blocks=self._pool.num_blocks,
            block_size=self._pool.block_size,
        )
        choices = range(command.params.n)
        if reason is not None:
            return [
                TokenEvent(command.request_id, c, 0, (), finish=FinishReason.ERROR, error=reason)
                for c in choices
            ]
        for choice in choices:
            if not command.emitted or command.emitted[choice] is not None:
                self._residents.enter(_new_request(command, choice))
        return []

    def draft_contexts(self) -> list[DraftContext]:
        """Sequences that may use drafts in the next step. Does not modify."""
        return self._draft_rows.contexts(self._max_num_batched_tokens - self.num_running)

    def plan(self, drafts: Sequence[Draft]) -> StepPlan:
        """Spend token and block budget on the next step; may admit and preempt.

        Drafts of sequences that are gone or not decoding are ignored, and so is every draft of a
        sequence after its first.
        """
        self._step += 1
        rows = self._plan_decoding()
        wanted = self._draft_rows.usable(drafts, rows)
        left = self._max_num_batched_tokens - len(rows)
        budget = self._prompt_rows.budget(left, rows, sum(map(len, wanted.values())))
        for request, count in self._prompt_rows.plan(budget):
            rows[request.sequence_id] = count
            left -= count
        granted = self._draft_rows.grant(wanted, left, self._step)
        sequences = [
            self._sequence_plan(request, num_rows, granted.get(request.sequence_id))
            for request in self._residents.running
            if (num_rows := rows.get(request.sequence_id)) is not None
        ]
        copies, swaps = self._residents.take_copies(), self._swapping.take()
        assert sequences or not (copies or any(swaps)), "blocks move and nothing is run"
        handoffs = self._residents.take_handoffs()
        return StepPlan(self._step, sharers_together(sequences), copies, *swaps, *handoffs)

    def apply(self, plan: StepPlan, verdicts: Sequence[Verdict]) -> list[TokenEvent]:
        """Turn verdicts into request state and events.

        Results that no longer describe the state they were planned from are dropped: those of any
        plan but the newest, and of sequences that were aborted since.
        """
        if plan.step != self._step:
            return []
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        find, running = self._residents.get, Status.RUNNING
        events = []
        for sequence in plan.sequences:
            request = find(sequence.sequence_id)
            if (
                request is None
                or request.num_computed != sequence.start
                or request.status is not running
            ):
                continue
            verdict = by_id.get(sequence.sequence_id)
            if verdict is not None and sequence.wants_prompt_logprobs:
                self._keep_prompt_logprobs(sequence, verdict)
            if sequence.samples:
                assert verdict is not None, f"no verdict for {sequence.sequence_id}"
                event = self._apply_verdict(request, sequence, verdict)
                events.append(self._handing_over.hand_over(request, event))
            else:
                self._residents.computed(request, len(sequence.history))
        return events

    def learn(self, plan: StepPlan, step_ms: float) -> None:
        """Take the measured time of a step.

        It bounds later chunks of prompts, and says whether swapping pays; nothing else.
        """
        self._prompt_rows.learn(plan, step_ms)
        self._swapping.learn(plan, step_ms)

    def _abort(self, request: Request) -> TokenEvent:
        self._prompt_logprobs.pop(request.sequence_id, None)
        self._residents.leave(request)
        return TokenEvent(*request.sequence_id, request.num_output, (), finish=FinishReason.ABORT)

    # -- plan -------------------------------------------------------------------------------------

    def _plan_decoding(self) -> dict[SequenceId, int]:
        """One row for each decoding sequence: {sequence id: committed rows}."""
        rows: dict[SequenceId, int] = {}
        running, reserve = Status.RUNNING, self._residents.reserve
        # Reserving for an early one may preempt late ones: go over a copy.
        for request in tuple(self._residents.running):
            if request.status is running and request.is_decoding:
                num_tokens = request.tokens.length
                has_room = num_tokens <= len(request.block_ids) * self._pool.block_size
                if has_room or reserve(request, num_tokens):
                    rows[request.sequence_id] = 1
        return rows

    def _sequence_plan(self, request: Request, num_rows: int, draft: Draft | None) -> SequencePlan:
        tokens = request.tokens
        start = request.num_computed
        end = start + num_rows
        samples = end == tokens.length
        num_slots = end if draft is None else end + len(draft)
        block_ids = request.block_ids
        if (num_blocks := self._residents.blocks_for(num_slots)) < len(block_ids):
            block_ids = block_ids[:num_blocks]
        return SequencePlan(
            request.sequence_id,
            start,
            tokens.view(0, end),
            request.num_prompt,
            draft,
            block_ids,
            request.params,
            samples,
            None if samples else int(tokens.view(end, end + 1)[0]),
            request.cache_salt,
        )

    # -- apply ------------------------------------------------------------------------------------

    def _keep_prompt_logprobs(self, sequence: SequencePlan, verdict: Verdict) -> None:
        """Collect them until the first event; a preempted prompt starts over."""
        if sequence.start == 0:
            self._prompt_logprobs[sequence.sequence_id] = [None]
        self._prompt_logprobs[sequence.sequence_id].extend(verdict.prompt_logprobs)

    def _apply_verdict(
        self, request: Request, sequence: SequencePlan, verdict: Verdict
    ) -> TokenEvent:
        tokens, num_kept = verdict.tokens, len(verdict.kept)
        assert len(tokens) == num_kept + 1, verdict
        index = request.tokens.length - request.num_prompt
        request.tokens.append(tokens)
        self._residents.computed(request, len(sequence.history) + num_kept)
        if verdict.finish is not None:
            self._residents.leave(request)
        elif sequence.draft is not None:
            self._residents.release_unused(request)
        if index > 0:
            draft = None if sequence.draft is None else draft_stats(sequence.draft, verdict)
            # By position: this is made for every token of every sequence.
            return TokenEvent(
                *request.sequence_id,
                index,
                tokens,
                verdict.logprobs,
                None,
                verdict.finish,
                verdict.stop_reason,
                None,
                draft,
            )
        return self._first_event(request, verdict)

    def _first_event(self, request: Request, verdict: Verdict) -> TokenEvent:
        if verdict.finish is None:
            # Others may go on from the same prompt at once, its last block included.
            self._residents.sharing.publish_tail(request)
        prompt_logprobs = self._prompt_logprobs.pop(request.sequence_id, None)
        if prompt_logprobs is not None:
            # They go out with this event; computing the prompt again must not ask for them.
            request.params = replace(request.params, prompt_logprobs=None)
        return TokenEvent(
            *request.sequence_id,
            0,
            verdict.tokens,
            verdict.logprobs,
            None if prompt_logprobs is None else tuple(prompt_logprobs),
            verdict.finish,
            verdict.stop_reason,
            num_cached=request.num_cached or 0,
        )


def _new_request(submit: Submit, choice: int) -> Request:
    """A choice at its start, or after tokens elsewhere: the state of one without its blocks."""
    params = submit.params
    emitted = (submit.emitted[choice] if submit.emitted else None) or ()
    if emitted:
        # They went out with the first token.
        params = replace(params, prompt_logprobs=None)
    assert params.max_tokens is not None
    return Request(
        (submit.request_id, choice),
        params,
        TokenBuffer(submit.prompt + emitted, reserve=min(params.max_tokens, 1024)),
        len(submit.prompt),
        priority=submit.priority,
        user=submit.user,
        digests=[root_digest(submit.cache_salt)],
        cache_salt=submit.cache_salt,
        offer=submit.offers[choice] if submit.offers else b"",
    )
