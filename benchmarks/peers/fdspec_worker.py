# SPDX-License-Identifier: Apache-2.0
"""fdspec behind worker_loop."""

from __future__ import annotations

import argparse
import json

from benchmarks.peers.worker_loop import serve_requests
from fdspec import LLM, SamplingParams


def main() -> None:
    """Load the model, then answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="YAML file")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON object of engine keys")
    arguments = parser.parse_args()
    llm = LLM(config=arguments.config, **arguments.options)

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    serve_requests(generate)


if __name__ == "__main__":
    main()
