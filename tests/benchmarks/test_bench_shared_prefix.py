# SPDX-License-Identifier: Apache-2.0
"""bench_shared_prefix: grouped and flat compute the same, and every figure is there."""

import json

import numpy as np

from benchmarks import bench_shared_prefix
from benchmarks.bench_shared_prefix import decode_batch, flat


def test_flat_has_the_same_rows_and_no_neighbours_that_share():
    batch = decode_batch(3, 128)
    other = flat(batch)
    assert other.row_splits.tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert other.context_lens.tolist() == [192, 0, 192, 0, 192, 0]
    assert np.array_equal(other.block_table[::2], batch.block_table)
    assert other.slots is batch.slots and len(set(batch.slots.tolist())) == 3


def test_figures(smollm2_path, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--model", str(smollm2_path), "--rows", "3", "--shared", "192"]
    bench_shared_prefix.main([*arguments, "--rounds", "1", "--output", str(report)])
    figures = json.loads(report.read_text())["figures"]
    assert [figure[:2] for figure in figures] == [[192, 3]]
