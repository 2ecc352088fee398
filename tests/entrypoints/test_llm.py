# SPDX-License-Identifier: Apache-2.0
"""The offline LLM on the demo model: lists in, lists out, good errors, nothing left behind."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import extractive_messages
from fdspec import LLM, SamplingParams
from fdspec.core import CheckpointError, ConfigError, FdspecError, InvalidParameter

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = ["The seven days of the week are Monday,", "Once upon a time", "ha ha ha ha ha ha ha"]


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(
        model=smollm2_path,
        speculative_config={"method": "ngram", "num_speculative_tokens": 5},
        max_model_len=2048,
        num_gpu_blocks_override=40,
        max_num_seqs=4,
    ) as llm:
        yield llm
    runner: Any = llm._engine.runner
    assert runner.cache.file_descriptor == -1


@pytest.fixture(autouse=True)
def nothing_is_left_behind(llm):
    yield
    stats = llm._engine.monitor.stats()
    assert stats.num_free_blocks == stats.num_blocks == 40
    assert stats.num_running == stats.num_waiting == 0


def texts(outputs):
    return [choice.text for output in outputs for choice in output.outputs]


def test_one_output_for_each_prompt_in_order(llm):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        (alone,) = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert output.prompt_token_ids == tuple(llm.tokenizer.encode(prompt))
    choice = outputs[0].outputs[0]
    assert "Saturday" in choice.text and choice.finish_reason == "length"
    assert len(choice.token_ids) == 12
    assert choice.text == llm.tokenizer.decode(choice.token_ids)
    assert llm.generate([], GREEDY) == []


def test_token_ids_are_prompts_too(llm):
    ids = llm.tokenizer.encode(PROMPTS[0])
    for prompts in (ids, [ids], [np.array(ids)], [tuple(ids)]):
        (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert output.prompt is None and output.prompt_token_ids == tuple(ids)
        assert "Saturday" in output.outputs[0].text


def test_parameters_for_each_prompt(llm):
    params = [replace(GREEDY, max_tokens=3), replace(GREEDY, max_tokens=5)]
    outputs = llm.generate(PROMPTS[:2], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5]


def test_chat(llm):
    question = [{"role": "user", "content": "Repeat the word stone five times."}]
    (single,) = llm.chat(question, GREEDY, use_tqdm=False)
    first, second = llm.chat([question, question], GREEDY, use_tqdm=False)
    assert "stone" in single.outputs[0].text.lower()
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == single.outputs[0].token_ids
    assert single.prompt is not None and "<|im_start|>assistant" in single.prompt


def test_choices_and_seeds(llm):
    params = SamplingParams(max_tokens=8, seed=7, n=3)
    (output,) = llm.generate(PROMPTS[1], params, use_tqdm=False)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len(set(texts([output]))) == 3
    assert llm.generate(PROMPTS[1], params, use_tqdm=False) == [output]
    unseeded = replace(params, seed=None, n=1)
    assert len(set(texts(llm.generate([PROMPTS[1]] * 6, unseeded, use_tqdm=False)))) > 1


def test_stop_strings_are_cut_from_the_text_but_not_from_the_tokens(llm):
    (whole,) = texts(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False))
    (output,) = llm.generate(PROMPTS[0], replace(GREEDY, stop=("Satur", "zzz")), use_tqdm=False)
    choice = output.outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "Satur")
    assert choice.text == whole[: whole.index("Satur")]
    assert "Satur" in llm.tokenizer.decode(choice.token_ids)
    kept = replace(GREEDY, stop=("Satur",), include_stop_str_in_output=True)
    assert texts(llm.generate(PROMPTS[0], kept, use_tqdm=False)) == [choice.text + "Satur"]


def test_stop_tokens_are_no_part_of_the_text(llm):
    (comma,) = llm.tokenizer.encode(",", add_special_tokens=False)
    params = replace(GREEDY, stop_token_ids=(comma,))
    (whole,) = texts(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False))
    choice = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0]
    assert choice.text == whole.split(",")[0]
    assert (choice.stop_reason, choice.token_ids[-1]) == (comma, comma)


def test_logprobs(llm):
    params = replace(GREEDY, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    choice = output.outputs[0]
    assert choice.logprobs is not None and output.prompt_logprobs is not None
    assert [entry.token_id for entry in choice.logprobs] == list(choice.token_ids)
    assert all(entry.rank == 1 and len(entry.top) == 2 for entry in choice.logprobs)
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_speculation_changes_no_token_and_gives_three_tokens_a_step(llm):
    """Repeat a text with one word changed: what n-gram drafts are made for."""
    params = replace(GREEDY, max_tokens=120)
    conversation = extractive_messages()
    (drafted,) = llm.chat(conversation, params, use_tqdm=False)
    (plain,) = llm.chat(conversation, replace(params, max_draft_tokens=0), use_tqdm=False)
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    draft = drafted.outputs[0].draft
    assert len(plain.outputs[0].token_ids) == plain.outputs[0].draft.num_steps
    assert plain.outputs[0].draft.num_drafted == 0
    assert len(drafted.outputs[0].token_ids) == draft.num_steps + draft.num_accepted
    assert len(drafted.outputs[0].token_ids) / draft.num_steps >= 3.0
    assert 0.5 < draft.acceptance_rate <= 1.0


def test_more_requests_than_fit_at_once(llm):
    prompts = [list(range(20, 20 + length)) for length in range(60, 460, 40)]
    outputs = llm.generate(prompts, replace(GREEDY, max_tokens=20), use_tqdm=False)
    alone = llm.generate(prompts[7], replace(GREEDY, max_tokens=20), use_tqdm=False)
    assert alone[0].outputs[0].token_ids == outputs[7].outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompts", "params", "param", "words"),
    [
        ([PROMPTS[0], []], GREEDY, "prompts[1]", ["no tokens"]),
        ([[5, 49152]], GREEDY, "prompts[0]", ["49152", "0..49151"]),
        ([[5, "x"]], GREEDY, "prompts[0]", ["'x'"]),
        ([[5, 1.5]], GREEDY, "prompts[0]", ["1.5"]),
        ([[5] * 3000], GREEDY, "prompts[0]", ["3000", "2048"]),
        ([[5] * 1000], replace(GREEDY, max_tokens=2000), "prompts[0]", ["1000", "2000", "2048"]),
        (PROMPTS, [GREEDY], "sampling_params", ["1", "3"]),
        (PROMPTS, replace(GREEDY, n=0), "n", ["0"]),
        (PROMPTS, replace(GREEDY, stop_token_ids=(99999,)), "stop_token_ids", ["99999"]),
        (PROMPTS, replace(GREEDY, logprobs=99), "logprobs", ["99", "20"]),
    ],
)
def test_wrong_requests_say_what_is_wrong(llm, prompts, params, param, words):
    with pytest.raises(InvalidParameter) as caught:
        llm.generate(prompts, params, use_tqdm=False)
    assert caught.value.param == param
    for word in words:
        assert word in str(caught.value)


def test_wrong_conversations_say_what_is_wrong(llm):
    with pytest.raises(InvalidParameter, match="must not be empty"):
        llm.chat([], GREEDY)


def test_an_interrupted_call_leaves_nothing_behind(llm, monkeypatch):
    calls = []
    execute = llm._engine.runner.execute

    def interrupted(plan):
        calls.append(plan)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return execute(plan)

    monkeypatch.setattr(llm._engine.runner, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    monkeypatch.undo()
    assert "Saturday" in texts(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False))[0]


def test_progress_bar_goes_to_standard_error(llm, capsys):
    llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
    assert capsys.readouterr() == ("", "")
    llm.generate(PROMPTS[:2], GREEDY)
    captured = capsys.readouterr()
    assert captured.out == "" and "2/2" in captured.err and "24 tokens" in captured.err


def test_facts_about_the_model(llm, smollm2_path):
    assert llm.model == str(smollm2_path)
    assert llm.max_model_len == 2048
    assert llm.num_threads >= 1


def test_keys_and_models_that_do_not_exist(smollm2_path):
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM(model=smollm2_path, max_num_seq=3)
    with pytest.raises((ConfigError, CheckpointError), match="no such file"):
        LLM(model="models/no-such-model.gguf")
    with pytest.raises(ConfigError, match="model"):
        LLM()


def test_a_configuration_file_and_options(smollm2_path, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"model: {smollm2_path}\nmax_model_len: 256\nnum_gpu_blocks_override: 8\n")
    small = LLM(config=file, max_model_len=128, seed=3, chat_template="{{ messages[0].content }}")
    assert small.max_model_len == 128
    (output,) = small.chat([{"role": "user", "content": PROMPTS[0]}], GREEDY, use_tqdm=False)
    assert output.prompt == PROMPTS[0] and "Saturday" in output.outputs[0].text


def test_a_closed_llm_says_so(smollm2_path):
    llm = LLM(str(smollm2_path), max_model_len=64, num_gpu_blocks_override=1)
    llm.close()
    llm.close()
    for use in (
        lambda: llm.generate("x"),
        lambda: llm.chat([{"role": "user", "content": "x"}]),
        llm.clear_cache,
    ):
        with pytest.raises(FdspecError, match="has been closed"):
            use()
