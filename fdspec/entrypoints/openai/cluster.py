# SPDX-License-Identifier: Apache-2.0
"""The topic as JSON: what `GET /v1/cluster` answers and `entrypoints.cluster` shows."""

from __future__ import annotations

from typing import Any

from fdspec.scheduler.broker.values import QUEUES, TopicStats


def describe_cluster(stats: TopicStats) -> dict[str, Any]:
    """Queues, and workers with their load."""
    return {
        "object": "cluster",
        "waiting": dict(zip(QUEUES, stats.num_waiting, strict=True)),
        "leased": stats.num_leased,
        "frontends": stats.num_frontends,
        "dead_letters": stats.num_dead_letters,
        "missing_roles": stats.missing_roles(),
        "workers": [
            {
                "id": worker.card.worker_id,
                "name": worker.card.name,
                "role": worker.card.role,
                "leased": worker.num_leased,
                "slots": worker.card.num_slots,
                "running": worker.card.num_running,
                "waiting": worker.card.num_waiting,
                "blocks": worker.card.num_blocks,
                "free_blocks": worker.card.num_free_blocks,
                "kv_endpoints": worker.card.endpoints,
            }
            for worker in stats.workers
        ],
    }
