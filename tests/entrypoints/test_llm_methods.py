# SPDX-License-Identifier: Apache-2.0
"""Methods of speculation on the demo model: fewer steps and the same tokens, over a restart too."""

from dataclasses import replace

import pytest

from fdspec import LLM, SamplingParams
from fdspec.core import InvalidParameter

QUESTION = "List the four seasons and one thing that people do in each of them."
PLAIN = SamplingParams(max_tokens=40, temperature=0.7, seed=5, ignore_eos=True, max_draft_tokens=0)
DRAFTING = replace(PLAIN, max_draft_tokens=None)


def open_llm(model, folder):
    members = [
        {"method": "suffix"},
        {"method": "memory", "memory_snapshot": str(folder / "texts")},
    ]
    return LLM(
        model=model,
        speculative_config={
            "method": "hybrid",
            "proposers": members,
            "adaptive_draft_length": False,
        },
        max_model_len=512,
        num_gpu_blocks_override=16,
    )


def ask(llm, params):
    (output,) = llm.generate([QUESTION], params, use_tqdm=False)
    return output.outputs[0]


def test_methods(smollm2_path, tmp_path):
    with open_llm(smollm2_path, tmp_path) as llm:
        plain = ask(llm, PLAIN)
        assert plain.draft.num_steps == len(plain.token_ids)
        ask(llm, DRAFTING)
        for method in (None, "suffix", "memory"):
            again = ask(llm, replace(DRAFTING, draft_method=method))
            assert again.token_ids == plain.token_ids
            assert 3 * again.draft.num_steps < plain.draft.num_steps, "it was remembered"
            assert method is None or set(again.draft.by_source) == {method}
        edited = (*plain.token_ids[:15], 9, 9, *plain.token_ids[17:])
        fresh = replace(DRAFTING, seed=6)
        other = ask(llm, replace(fresh, max_draft_tokens=0))
        guessed = ask(llm, replace(fresh, prediction=other.token_ids))
        assert guessed.token_ids == other.token_ids
        assert guessed.draft.by_source["prediction"][1] > 25
        guessed = ask(llm, replace(fresh, prediction=edited))
        assert guessed.token_ids == other.token_ids, "a wrong prediction changes nothing"
        with pytest.raises(InvalidParameter, match="one of hybrid, suffix, memory, got 'ngram'"):
            ask(llm, replace(DRAFTING, draft_method="ngram"))
    with open_llm(smollm2_path, tmp_path) as llm:
        again = ask(llm, replace(DRAFTING, draft_method="memory"))
        assert again.token_ids == plain.token_ids
        assert 3 * again.draft.num_steps < plain.draft.num_steps, "a restart was survived"
