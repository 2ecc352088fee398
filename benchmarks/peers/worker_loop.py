# SPDX-License-Identifier: Apache-2.0
"""A peer in a process of its own: JSON requests on standard input, one JSON answer for each.

Runs inside the peer's Python, so it imports the standard library only. What the peer prints goes to
standard error; standard output is for answers.

A request is {"prompts": [[token ids]], "max_tokens": n}: continue all prompts at once, greedily, to
exactly n tokens each. The answer is {"seconds": s, "num_output": tokens of all prompts}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], int]
"""Continues prompts by so many tokens; returns how many tokens came out in all."""


def serve_requests(generate: Generate) -> None:
    """Answer until standard input ends. Says {"ready": true} first."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        start_s = time.perf_counter()
        num_output = generate(request["prompts"], request["max_tokens"])
        seconds = time.perf_counter() - start_s
        print(json.dumps({"seconds": seconds, "num_output": num_output}), file=answers)
