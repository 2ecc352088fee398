# SPDX-License-Identifier: Apache-2.0
"""Servers that a benchmark starts, measures and stops, by the launcher."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
_READY = r"servers are ready: (http://\S+)"
_WORKER = r"(?m)^(\S+) +\| .*serving on (http://\S+)"


@dataclass(frozen=True)
class LaunchedServers:
    """Servers that run.

    Attributes:
        url: where requests go.
        urls: of every server, by its name; that of public ones is `url`.
    """

    url: str
    urls: dict[str, str]


@contextmanager
def launched_servers(
    configs: Sequence[str], flags: Sequence[str] = (), timeout_s: float = 600.0
) -> Iterator[LaunchedServers]:
    """Start the servers of YAML files at a free port; they end with the block.

    Args:
        configs: as for `python -m fdspec.entrypoints.launch --config`.
        flags: further options of it.
        timeout_s: how long they may take to be ready.

    Raises:
        ServerError: they did not start; the message holds the end of their log.
    """
    command = [sys.executable, "-m", "fdspec.entrypoints.launch"]
    command += [word for config in configs for word in ("--config", config)]
    # A file's own port may be taken, and its broker may not run.
    command += ["--host", "127.0.0.1", "--port", "0"]
    if len(configs) > 1:
        command += ["--scheduler-url", "embedded"]
    command += flags
    with ServerProcess(command, ROOT, 0) as servers:
        print(f"starting {', '.join(configs)}", flush=True)
        url = servers.wait_until_logged(_READY, timeout_s)[1]
        found = re.findall(_WORKER, servers.log())
        print(f"ready at {url}", flush=True)
        yield LaunchedServers(url, dict(found))


def launch_flags(
    speculative_config: str | None, scheduler_topic: str | None, further: str
) -> list[str]:
    """Flags of the launcher for what benchmarks are asked for.

    Args:
        speculative_config: JSON, or off.
        scheduler_topic: name of a topic.
        further: any flags, as one text.
    """
    flags = []
    if speculative_config:
        flags += ["--speculative-config", speculative_config]
    if scheduler_topic:
        flags += ["--scheduler-topic", scheduler_topic]
    return [*flags, *shlex.split(further)]
