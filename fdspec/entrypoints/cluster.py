# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.cluster status`: who is on a scheduler topic, and what waits there.

Asks the broker itself; takes the configuration's `scheduler_*` keys, from flags or `--config FILE`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from fdspec.config import load_config_or_exit
from fdspec.config.broker_address import EMBEDDED
from fdspec.entrypoints.openai.cluster import describe_cluster
from fdspec.scheduler.broker.connecting import opener
from fdspec.scheduler.broker.interface import BrokerError
from fdspec.scheduler.broker.values import QUEUES, TopicStats

PROGRAM = "python -m fdspec.entrypoints.cluster"
_USAGE = (
    f"usage: {PROGRAM} status [--json] [--config FILE] [--scheduler-url URL] "
    "[--scheduler-topic NAME]"
)
_COLUMNS = ("worker", "role", "leased", "running", "waiting", "slots", "free blocks", "blocks")


def main(argv: Sequence[str] | None = None) -> int:
    """Show a topic; returns the exit status: 0, 1 if the broker does not answer, 2 for a mistake.

    Args:
        argv: command line without the program's name; None takes the process's own.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] != "status":
        print(_USAGE, file=sys.stderr)
        return 2
    as_json = "--json" in words
    flags = [word for word in words[1:] if word != "--json"]
    # No model is served here, and no server started.
    fixed = ["--model", "none", "--scheduler-name", "global"]
    config = load_config_or_exit([*flags, *fixed], PROGRAM).config.topic
    if config.scheduler_url == EMBEDDED:
        print(
            f"{PROGRAM}: an embedded broker has an address of its own, which its server logs; give "
            "it as --scheduler-url",
            file=sys.stderr,
        )
        return 2
    broker = opener(config)()
    try:
        stats = broker.stats()
    except BrokerError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    finally:
        broker.close()
    print(json.dumps(describe_cluster(stats), indent=2) if as_json else render(stats))
    return 0


def render(stats: TopicStats) -> str:
    """The topic as a table."""
    waiting = ", ".join(
        f"{count} {queue}" for queue, count in zip(QUEUES, stats.num_waiting, strict=True) if count
    )
    lines = [
        f"requests: {waiting or '0'} waiting, {stats.num_leased} leased, "
        f"{stats.num_dead_letters} given up; frontends: {stats.num_frontends}"
    ]
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for worker in stats.workers:
        card = worker.card
        counts = (
            *(worker.num_leased, card.num_running, card.num_waiting, card.num_slots),
            *(card.num_free_blocks, card.num_blocks),
        )
        rows.append((card.name or card.worker_id, card.role, *map(str, counts)))
    if len(rows) == 1:
        return lines[0] + "\nno worker is alive"
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    if missing := stats.missing_roles():
        lines.append(f"no {' and no '.join(missing)} worker is alive: requests wait")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
