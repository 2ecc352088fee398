# SPDX-License-Identifier: Apache-2.0
"""bench_scheduler: every load is made as it says, and every figure is written."""

import json

from benchmarks import bench_scheduler
from benchmarks.bench_scheduler import Load, loaded_scheduler


def test_the_load_is_what_it_says():
    scheduler = loaded_scheduler(Load(num_running=6, num_queued=10, num_cached=20))
    assert scheduler.num_running == 6 and scheduler.num_waiting == 10
    scheduler.check()


def test_figures(tmp_path):
    report = tmp_path / "report.json"
    sizes = ["--running", "8", "--queued", "8", "--cached", "16", "--steps", "2"]
    bench_scheduler.main([*sizes, "--output", str(report)])
    steps = json.loads(report.read_text())["steps"]
    assert [8, 8, 16] in [load for load, _ in steps] and len(steps) == 10
    assert all(spread["median"] > 0 for _, spread in steps)
