# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI behind worker_loop; run by a Python that has openvino-genai installed."""

from __future__ import annotations

import argparse

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.peers.worker_loop import serve_requests


def main() -> None:
    """Load the model, then answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="GGUF file or OpenVINO model folder")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    # All prompts of a request run at once; a single one runs as in LLMPipeline, which wraps this.
    pipeline = genai.ContinuousBatchingPipeline(
        arguments.model,
        scheduler,
        "CPU",
        {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": arguments.threads},
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, [config] * len(prompts))
        return sum(len(ids) for result in results for ids in result.m_generation_ids)

    serve_requests(generate)


if __name__ == "__main__":
    main()
