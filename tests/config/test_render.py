# SPDX-License-Identifier: Apache-2.0
"""--print-config, --help, --version and the exit status of wrong command lines."""

import re

import pytest
import yaml

from fdspec.config import load_config, load_config_or_exit
from fdspec.config.render import help_text, render_config
from fdspec.config.schema import sections
from fdspec.version import __version__

SPECULATION = '{"method":"ngram","num_speculative_tokens":3}'


def test_printed_configuration_loads_to_the_same_one(tmp_path):
    loaded = load_config(
        [
            *("--model", "a: b #c", "--served-model-name", "one", "two", "--seed", "3"),
            *("--speculative-config", SPECULATION, "--chat-template", "{{ x }}\n\ttail ü"),
            *("--gpu-memory-utilization", "0.125", "--no-enable-chunked-prefill"),
        ]
    )
    path = tmp_path / "printed.yaml"
    path.write_text(render_config(loaded.config, loaded.origins), encoding="utf-8")
    assert load_config(["--config", str(path)]).config == loaded.config


def test_printed_configuration_without_speculation_loads_too(tmp_path):
    loaded = load_config(["--model", "m"])
    path = tmp_path / "printed.yaml"
    path.write_text(render_config(loaded.config, loaded.origins))
    again = load_config(["--config", str(path)])
    assert again.config == loaded.config
    assert again.config.speculative is None


def test_every_line_ends_with_an_origin(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("model: m\nspeculative_config:\n  method: ngram\n  max_ngram_size: 1\n")
    loaded = load_config(["--config", str(path), "--port", "80"])
    lines = render_config(loaded.config, loaded.origins).splitlines()
    by_key: dict[str, str] = {}
    for line in lines:
        if not line.startswith("#"):
            # A section may have a key of the same name as one of the top level, which comes first.
            by_key.setdefault(line.split(":")[0].strip(), line.rpartition("# ")[2])
    assert by_key["model"] == f"{path}:1"
    assert by_key["speculative_config"] == f"{path}:2"
    assert by_key["max_ngram_size"] == f"{path}:4"
    assert by_key["min_ngram_size"] == "derived"
    assert by_key["port"] == "command line"
    assert by_key["host"] == "default"
    keys = {option.path[-1] for section in sections() for option in section.options}
    assert keys <= by_key.keys()


def test_secrets_are_not_shown(monkeypatch):
    monkeypatch.setenv("FD_API_KEY", "hunter2")
    loaded = load_config(["--model", "m"])
    text = render_config(loaded.config, loaded.origins)
    assert "hunter2" not in text
    assert "environment FD_API_KEY (set, not shown)" in text
    assert yaml.safe_load(text)["api_key"] is None


def test_print_config_flag_prints_and_ends(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config_or_exit(["--model", "m", "--print-config"], "api_server")
    assert caught.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"] == "m"


def test_help_names_every_option_once(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config_or_exit(["--nonsense", "--help"], "api_server")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for section in sections():
        assert f"\n{section.title}:\n" in text
        for option in section.options:
            assert len(re.findall(rf"^  {re.escape(option.flag)} ", text, re.MULTILINE)) == 1


def test_help_fits_the_screen():
    assert max(map(len, help_text("python -m fdspec.entrypoints.api_server").splitlines())) <= 100


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config_or_exit(["--version"], "api_server")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"fdspec {__version__}\n"


def test_wrong_command_line_ends_with_status_two_and_no_traceback(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config_or_exit(["--model", "m", "--prot", "1"], "api_server")
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.err == "api_server: --prot: unknown key; did you mean --port?\n"
    assert captured.out == ""


def test_warnings_are_logged_once(caplog):
    with caplog.at_level("WARNING", logger="fdspec"):
        load_config_or_exit(["--model", "m", "--tensor-parallel-size", "4"], "api_server")
    assert len(caplog.records) == 1
