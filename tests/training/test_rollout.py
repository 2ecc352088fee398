# SPDX-License-Identifier: Apache-2.0
"""Recordings are what a server computes, whatever else is recorded at the same time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fdspec import LLM, SamplingParams
from fdspec.core import ConfigError, FdspecError
from fdspec.training.library import SHARD_SIZE, RecordingLibrary
from fdspec.training.recording import read_shard, write_shard
from fdspec.training.rollout import Rollout, is_loop


def assert_equal(one, other):
    for name in ("tokens", "hidden", "candidates", "logprobs", "turn_start", "answer_start"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_greedy_answers_are_those_of_the_engine(tiny_path, held_out):
    recording = held_out[0]
    prompt = recording.tokens[: recording.answer_start].tolist()
    answer = recording.tokens[recording.answer_start :].tolist()
    params = SamplingParams(temperature=0.0, max_tokens=len(answer))
    with LLM(tiny_path, quantization="none", num_gpu_blocks_override=16) as llm:
        output = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0]
    assert list(output.token_ids) == answer
    np.testing.assert_array_equal(recording.candidates[recording.answer_start - 1 : -1, 0], answer)


def test_recordings_depend_on_their_script_alone(tiny_model, prompts, recordings):
    alone = Rollout(tiny_model, prompts.eos_ids, batch_size=1).run(prompts.training([3]))
    assert_equal(alone[0], recordings[3])


def test_a_conversation_has_the_parts_of_its_script(prompts, recordings):
    for script, recording in zip(prompts.training(range(6)), recordings, strict=True):
        turn, answer = recording.turn_start, recording.answer_start
        tokens = recording.tokens.tolist()
        assert tuple(tokens[:turn]) == script.opening
        assert tuple(tokens[answer - len(script.turn_end) : answer]) == script.turn_end
        assert len(tokens) - answer <= script.max_answer_tokens
        assert answer - len(script.turn_end) - turn <= script.max_turn_tokens
        best = recording.logprobs[:, 0]
        assert (best[:, None] >= recording.logprobs).all()
        assert (np.exp(recording.logprobs, dtype=np.float32).sum(axis=1) < 1.001).all()


def test_a_script_beyond_the_context_is_refused(rollout, prompts):
    script = prompts.training([0])[0]
    with pytest.raises(ConfigError, match="context"):
        rollout.run([replace(script, max_answer_tokens=10_000)])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([7] * 40, True), ([1, 2, 3] * 12, True), ([1, 2, 3] * 4, False), (list(range(99)), False)],
)
def test_loops(tokens, expected):
    assert is_loop(tokens) is expected


def test_shards_come_back_as_they_were(tmp_path, recordings):
    path = tmp_path / "shard.safetensors"
    write_shard(path, recordings)
    for one, other in zip(read_shard(path), recordings, strict=True):
        assert_equal(one, other)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FdspecError, match="delete it"):
        read_shard(path)


def test_a_library_goes_on_behind_its_shards(tmp_path, recordings):
    asked = []

    def scripts_of(numbers):
        asked.append(numbers)
        return [number for number in numbers if number < 70]

    library = RecordingLibrary(tmp_path, {"model": "a"})
    played = library.extend(scripts_of, lambda scripts: recordings[: len(scripts)])
    assert len(next(played)) == len(recordings)
    again = list(library.extend(scripts_of, lambda _: recordings[:1]))
    assert [len(shard) for shard in again] == [len(recordings), 1, 1]
    starts = [numbers.start for numbers in asked]
    assert starts == [0, SHARD_SIZE, 2 * SHARD_SIZE, 3 * SHARD_SIZE]
    with pytest.raises(FdspecError, match="another model"):
        RecordingLibrary(tmp_path, {"model": "b"})
