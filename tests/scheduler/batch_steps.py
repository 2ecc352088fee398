# SPDX-License-Identifier: Apache-2.0
"""Steps of a batch scheduler without a model: what to submit, what came of it."""

from dataclasses import replace

from fdspec.core import Draft, FinishReason, SamplingParams, StepPlan, Submit, Verdict
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler

PARAMS = SamplingParams(max_tokens=8, seed=0)


def make(num_blocks=100, block_size=4, **limits):
    pool = BlockPool(num_blocks, block_size)
    settings = {
        "vocab_size": 500,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        **limits,
    }
    return BatchScheduler(pool, **settings), pool


def submit(name, num_prompt, *, priority=0, **params):
    """A request that shares nothing with those of other names."""
    prompt = tuple(range(1, num_prompt + 1))
    return Submit(name, prompt, replace(PARAMS, **params), priority, cache_salt=name)


def rows(plan: StepPlan):
    return {s.sequence_id[0]: (s.num_committed_rows, s.num_draft_rows) for s in plan.sequences}


def verdicts(plan: StepPlan, *, accept=0, token=9):
    """The target agrees with the first `accept` draft tokens; ends at max_tokens."""
    result = []
    for sequence in plan.sequences:
        if not sequence.samples:
            continue
        kept = tuple(range(min(accept, sequence.num_draft_rows)))
        accepted = sequence.draft.tokens[list(kept)].tolist() if sequence.draft else []
        tokens = (*accepted, token)
        done = sequence.num_output + len(tokens) >= (sequence.params.max_tokens or 0)
        result.append(
            Verdict(
                sequence.sequence_id,
                tokens,
                kept,
                sequence.num_draft_rows,
                finish=FinishReason.LENGTH if done else None,
            )
        )
    return result


def step(scheduler, drafts=(), **options):
    plan = scheduler.plan(drafts)
    events = scheduler.apply(plan, verdicts(plan, **options))
    scheduler.check()
    return plan, events


def chain(name, length, choice=0):
    return Draft.chain((name, choice), [7] * length, "test")


def start(scheduler, *submits):
    for command in submits:
        scheduler.add(command)
    step(scheduler)
