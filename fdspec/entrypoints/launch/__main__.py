# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.launch --config FILE --port 8180`: the launcher's command line.

Reads the plan and hands it to `supervisor.launch`. Never imports paddle; the engines do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from fdspec.config.command_line import read_command_line
from fdspec.config.launch import LaunchPlan, ServerKeys, SupervisionConfig, load_launch
from fdspec.config.options import options_of
from fdspec.config.render import render_config
from fdspec.core import ConfigError
from fdspec.entrypoints.launch.supervisor import launch
from fdspec.utils.logging import configure_logging, get_logger
from fdspec.version import __version__

PROGRAM = "python -m fdspec.entrypoints.launch"
logger = get_logger("fdspec.entrypoints.launch")

_HELP = f"""\
usage: {PROGRAM} --config FILE.yaml [--config FILE.yaml ...] [--port N] [--option VALUE ...]

Starts the servers that a file names under `servers`, and a broker for them; or, of several files, a
server for each and a frontend. Starts again what ends; ends all of it on Ctrl-C or SIGTERM.
docs/disaggregation.md explains the file.

  --config FILE             YAML file; several make a server each.
  --host HOST, --port N     Address at which the launch is reached. Default: the file's, or
                            127.0.0.1:8000.
  --servers.NAME.KEY VALUE  A key of one server; any other option is for all of them
                            (python -m fdspec.entrypoints.api_server --help lists them).
  --print-config            Print the configuration of every server, and end.
  --version, --help         Print that, and end.

Keys of a server beside those of its configuration:
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a launch; returns the exit status.

    0 after a signal, 1 if a server cannot be kept running, 2 for a wrong configuration.

    Args:
        argv: command line without the program's name; None takes the process's own.
    """
    configure_logging("launch")
    try:
        files, others = _config_files(sys.argv[1:] if argv is None else argv)
        command_line = read_command_line(others)
        if command_line.action == "help":
            print(_help())
            return 0
        if command_line.action == "version":
            print(f"fdspec {__version__}")
            return 0
        if not files:
            raise ConfigError("--config FILE is missing: a YAML file that names servers")
        plan = load_launch(files, command_line.settings)
    except ConfigError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    for warning in plan.warnings:
        logger.warning(warning)
    if command_line.action == "print_config":
        print(_render(plan))
        return 0
    return asyncio.run(launch(plan))


def _config_files(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of --config, and the other words.

    Raises:
        ConfigError: a --config without a file.
    """
    files: list[str] = []
    others: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--config":
            others.append(word)
            continue
        file = value if equals else next(words, "")
        if not file or file.startswith("-"):
            raise ConfigError("--config takes the path of a YAML file")
        files.append(file)
    return files, others


def _help() -> str:
    lines = [_HELP.rstrip()]
    for part in (ServerKeys, SupervisionConfig):
        if part is SupervisionConfig:
            lines += ["", "Keys of the section `supervision`:"]
        lines += [f"  {option.path[0]}: {option.help}" for option in options_of(part)]
    return "\n".join(lines)


def _render(plan: LaunchPlan) -> str:
    parts = []
    for server in plan.servers:
        parts.append(f"# === {server.name} ===")
        parts.append(render_config(server.config, server.loaded.origins))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
