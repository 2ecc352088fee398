# SPDX-License-Identifier: Apache-2.0
"""Log lines: level by FDSPEC_LOG, one format, no doubled handlers."""

import logging

import pytest

from fdspec.utils.logging import configure_logging, get_logger, level_from_environment


def test_level_comes_from_the_environment():
    assert level_from_environment({}) == logging.INFO
    assert level_from_environment({"FDSPEC_LOG": "Debug"}) == logging.DEBUG
    with pytest.raises(ValueError, match="must be one of debug, info, warning, error, got 'loud'"):
        level_from_environment({"FDSPEC_LOG": "loud"})


def test_configuring_twice_logs_once(capsys, monkeypatch):
    monkeypatch.delenv("FDSPEC_LOG", raising=False)
    configure_logging("server")
    configure_logging("engine")
    get_logger("fdspec.tests").info("hello")
    get_logger("fdspec.tests").debug("not this")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert "engine[" in lines[0]
    assert lines[0].endswith("fdspec.tests: hello")
    assert captured.out == ""
