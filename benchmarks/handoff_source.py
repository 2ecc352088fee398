# SPDX-License-Identifier: Apache-2.0
"""The prefill process of bench_handoff: computes prompts and offers their KV cache.

Takes JSON lines from standard input and answers on standard output, one line each, but two for a
prompt that is offered while it is computed. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fdspec.core import SamplingParams
from fdspec.core.plan import SequencePlan, StepPlan
from fdspec.engine.kv_layout import kv_layout
from fdspec.models import ModelOptions, load_model
from fdspec.ops import set_num_threads
from fdspec.transfer import Completion, HandoffServer, Offer, ServerOptions, TransportOptions
from fdspec.transfer.offer import OfferKey, encode_offer
from fdspec.worker.model_runner import ModelRunner

_LEASE_S = 600.0


class Source:
    """A model, its cache, and the server that hands blocks of it over."""

    def __init__(self, options: dict[str, Any]) -> None:
        if options["threads"]:
            set_num_threads(options["threads"])
        self._num_prompt: int = options["prompt"]
        self._chunk: int = options["chunk"]
        self._block_size: int = options["block_size"]
        num_blocks = -(-self._num_prompt // self._block_size)
        model = load_model(options["model"], ModelOptions(quantization=None))
        self._runner = ModelRunner(
            model,
            num_blocks=num_blocks,
            block_size=self._block_size,
            kv_cache_dtype=options["kv_cache_dtype"],
        )
        cache = self._runner.cache
        cache.memory().prefault()
        # As after some hours of service, blocks of a prompt do not follow each other.
        blocks = list(range(num_blocks))
        random.Random(1).shuffle(blocks)
        self._blocks = tuple(blocks)
        self._vocab_size = model.config.vocab_size
        self.layout = kv_layout(cache, checkpoint=options["model"], quantization="", rope="")
        server_options = ServerOptions(
            TransportOptions(Path(options["folder"])),
            transports=tuple(options["transports"]),
            lease_s=_LEASE_S,
            checksums=options["checksums"],
        )
        self._server = HandoffServer(cache.memory(), self.layout, server_options, lambda _: None)
        self._names = map(str, itertools.count())

    def prefill(self, *, overlap: bool) -> None:
        """Compute a prompt of random tokens and offer it, from the start on or at the end."""
        name = next(self._names)
        generator = np.random.default_rng(int(name))
        tokens = generator.integers(self._vocab_size, size=self._num_prompt, dtype=np.int32)
        key = (name, 0, 0)
        if overlap:
            _say(offer=_encode(self._server.open(key, self._blocks, self._num_prompt)))
        start_s = time.monotonic()
        for start in range(0, self._num_prompt, self._chunk):
            end = min(start + self._chunk, self._num_prompt)
            self._step(key, tokens, start, end, overlap)
        end_s = time.monotonic()
        if not overlap:
            self._server.open(key, self._blocks, self._num_prompt)
        offer = self._server.complete(key, Completion(first_token=0))
        assert offer is not None
        _say(offer=_encode(offer), prefill_s=end_s - start_s, start_s=start_s, end_s=end_s)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _step(
        self, key: OfferKey, tokens: np.ndarray[Any, Any], start: int, end: int, overlap: bool
    ) -> None:
        is_last = end == len(tokens)
        # A block that is not full before the end of the prompt is not complete.
        num_blocks = len(self._blocks) if is_last else end // self._block_size
        if overlap:
            self._server.computing({key: num_blocks}, lambda: self._runner.num_layers_appended)
        plan = SequencePlan(
            sequence_id=key[:2],
            start=start,
            history=tokens[:end],
            num_prompt=len(tokens),
            draft=None,
            block_ids=self._blocks[: -(-end // self._block_size)],
            params=SamplingParams(temperature=0.0),
            samples=is_last,
            next_token=None if is_last else int(tokens[end]),
        )
        self._runner.execute(StepPlan(0, (plan,)))
        if overlap:
            self._server.advance({key: num_blocks})


def _encode(offer: Offer) -> str:
    return base64.b64encode(encode_offer(offer)).decode()


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    """Answer until there are no more lines."""
    source = Source(json.loads(sys.argv[1]))
    _say(layout=msgspec.to_builtins(source.layout))
    for line in sys.stdin:
        source.prefill(**json.loads(line))
    source.close()


if __name__ == "__main__":
    main()
