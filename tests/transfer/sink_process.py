# SPDX-License-Identifier: Apache-2.0
"""A decode process without a model: holds an offer, or waits for one, until it is killed."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from fdspec.transfer import HandoffSink, decode_offer
from tests.transfer.worlds import cache_of, layout_of, sink_options


def main() -> None:
    """Do what the commands say."""
    cache = cache_of("bfloat16", 16)
    sink = HandoffSink(cache.memory(), layout_of(cache), sink_options(Path(sys.argv[1])))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        verb, text = json.loads(line)
        offer = decode_offer(base64.b64decode(text["offer"]))
        if verb == "hold":
            sink.hold(offer)
        else:
            sink.start(offer, offer.block_ids)
        print(json.dumps("begun"), flush=True)
    sink.close()


if __name__ == "__main__":
    main()
