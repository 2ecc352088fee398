# SPDX-License-Identifier: Apache-2.0
"""Spreads, percentiles, tables and files of the benchmarks."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.report import Spread, load_pyplot, percentile, print_table, write_json


def test_spread() -> None:
    spread = Spread.of([3.0, 1.0, 8.0])
    assert spread == Spread(3.0, 1.0, 8.0)
    assert spread.times(100) == Spread(300.0, 100.0, 800.0)
    assert spread.times(100).short() == "300 (100 .. 800)"


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 99, 0), ([7], 50, 7), ([4, 1, 3, 2], 50, 2.5), ([1, 2, 3], 100, 3), ([0, 10], 99, 9.9)],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "value"], [["a", 1], ["longer", 22]])
    assert capsys.readouterr().out == "name    value\na           1\nlonger     22\n"


def test_json_holds_dataclasses(tmp_path) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"rates": {128: Spread(1, 0, 2)}})
    expected = {"rates": {"128": {"median": 1, "low": 0, "high": 2}}}
    assert json.loads(path.read_text()) == expected
    with pytest.raises(TypeError, match="cannot be written"):
        write_json(path, {"what": object()})


def test_missing_matplotlib_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"pip install 'fdspec\[bench\]'"):
        load_pyplot()
