# SPDX-License-Identifier: Apache-2.0
"""LaunchPlan: the servers of one machine, from one file that names them or from a file for each.

    model: models/some.gguf            # keys of all servers
    servers:
      prefill: {cpus: 0}               # keys of one, which is called prefill and has that role
      decode: {cpus: 1, max_num_seqs: 16}
      frontend: {}

Called by `fdspec.entrypoints.launch`, which starts them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fdspec.config.checks import check_numbers
from fdspec.config.engine_config import EngineConfig
from fdspec.config.launch_checks import check_alike, check_name, check_sections, nearest
from fdspec.config.loader import LoadedConfig, assemble, environment
from fdspec.config.options import Option, option, options_of
from fdspec.config.processors import Processors, read_processors
from fdspec.config.settings import Setting, members_of
from fdspec.config.topic import TopicConfig
from fdspec.config.translation import own_name
from fdspec.config.values import convert
from fdspec.config.yaml_file import read_yaml
from fdspec.core.errors import ConfigError

SERVERS = "servers"
SUPERVISION = "supervision"
DEFAULT = "default of a launch"
_ROLE = "splitwise_role"
_ADDRESS = ("host", "port")


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """When a server that has ended is started again."""

    max_failed_starts: int = option(
        3,
        minimum=1,
        help="A server that ends so many times in a row before it is ready ends the launch.",
    )
    restart_delay: float = option(
        1.0,
        minimum=0.0,
        help="Seconds until a server that has ended is started again; doubled for each start in a "
        "row that has failed.",
    )
    max_restart_delay: float = option(30.0, minimum=0.0, help="Most seconds of that.")

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Keys of an entry of `servers` that are no keys of a server's own configuration."""

    count: int = option(1, minimum=1, maximum=256, help="How many such servers there are.")
    cpus: tuple[str, ...] = option(
        (),
        help="Processors that the server may use, such as `0-3,8`; a list gives each of `count` "
        "servers its own. Default: all of the launcher's.",
    )


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server.

    Attributes:
        name: of the server, for log lines.
        loaded: its configuration; `scheduler_url` may be `embedded`, for all of the launch.
        cpus: processors that it may use; None for all.
        is_public: True if it is reached at the launch's address.
    """

    name: str
    loaded: LoadedConfig
    cpus: Processors | None
    is_public: bool

    @property
    def config(self) -> EngineConfig:
        """The server's configuration."""
        return self.loaded.config

    @property
    def role(self) -> str:
        """Its splitwise_role."""
        return self.config.topic.splitwise_role


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Servers that are started, watched and ended together.

    Attributes:
        servers: at least one; all public ones have the same host and port.
        supervision: when they are started again.
    """

    servers: tuple[ServerPlan, ...]
    supervision: SupervisionConfig = SupervisionConfig()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should hear, each once."""
        lines = [line for server in self.servers for line in server.loaded.warnings]
        return tuple(dict.fromkeys(lines))


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is written of one kind of server.

    Attributes:
        name: of the kind.
        layers: of files, the weakest first.
        role: that they come to.
        flags: for this kind alone.
        keys: those of ServerKeys.
    """

    name: str
    layers: tuple[Sequence[Setting], ...]
    role: str
    flags: Sequence[Setting] = ()
    keys: Mapping[str, Setting] = field(default_factory=dict)


def load_launch(files: Sequence[str], flags: Sequence[Setting] = ()) -> LaunchPlan:
    """The plan of one file with `servers`, or of several files, a server's configuration each.

    Several files get a frontend beside them if none of them is one.

    Args:
        files: YAML files, at least one.
        flags: of the command line; they win over the files, for all servers. Those under
            `servers.NAME` are for one, `host` and `port` for the address of the launch.

    Raises:
        ConfigError: names place, key, value and remedy of everything that is wrong.
    """
    common = [flag for flag in flags if flag.path[0] not in (SERVERS, SUPERVISION)]
    contents = [read_yaml(path) for path in files]
    for settings in (*contents, flags):
        check_sections(settings, (SERVERS, SUPERVISION))
    entries = (
        _entries_of_file(files[0], contents[0], [f for f in flags if f.path[0] == SERVERS])
        if len(files) == 1 and any(setting.path == (SERVERS,) for setting in contents[0])
        else _entries_of_files(files, contents, flags)
    )
    if len(entries) > 1 or entries[0].role != "mixed" or entries[0].keys.get("count"):
        entries = [_on_shared_topic(entry, entries, common) for entry in entries]
    public = _public_roles({entry.role for entry in entries})
    servers = [
        server for entry in entries for server in _servers(entry, common, entry.role in public)
    ]
    check_alike([(server.name, server.loaded) for server in servers])
    return LaunchPlan(tuple(servers), _supervision([*contents[0], *flags]))


def _entries_of_file(
    path: str, content: Sequence[Setting], flags: Sequence[Setting]
) -> list[_Entry]:
    """The servers that one file names."""
    (servers,) = (setting for setting in content if setting.path == (SERVERS,))
    example = "such as {prefill: {cpus: 0}, decode: {cpus: 1}, frontend: {}}"
    if not isinstance(servers.value, dict) or not servers.value:
        raise ConfigError(
            f"{servers.where}: must be a map of servers, {example}, got {servers.value!r}"
        )
    shared = [s for s in content if s.path[0] not in (SERVERS, SUPERVISION)]
    entries = []
    names = [".".join(setting.path[1:]) for setting in members_of(servers)]
    for flag in flags:
        if len(flag.path) < 3 or flag.path[1] not in names:
            near = nearest(flag.path[1], names) if len(flag.path) > 2 else None
            hint = f"; did you mean --{'.'.join((SERVERS, near, *flag.path[2:]))}?" if near else ""
            raise ConfigError(
                f"{flag.where}: must be --servers.NAME.KEY, where NAME is one of "
                f"{', '.join(names)}{hint}"
            )
    for name, setting in zip(names, members_of(servers), strict=True):
        if not isinstance(setting.value, dict | None):
            raise ConfigError(
                f"{setting.where}: must be a map of the server's keys, got {setting.value!r}"
            )
        members = members_of(setting) if setting.value else ()
        own_flags = [_inside(flag) for flag in flags if flag.path[1] == name]
        own = list(map(_inside, members))
        if not any(own_name(found) == _ROLE for found in (*shared, *own, *own_flags)):
            check_name(setting, name, _role().choices)
        entries.append(_entry(name, shared, own, own_flags))
    return entries


def _entry(
    name: str, shared: Sequence[Setting], own: Sequence[Setting], flags: Sequence[Setting]
) -> _Entry:
    """An entry of `servers`; its role is its name if there is such a role."""
    keys = [found.path[0] for found in options_of(ServerKeys)]
    for setting in (*own, *flags):
        near = nearest(setting.path[0], keys)
        if near and setting.path[0] not in keys:
            raise ConfigError(f"{setting.where}: unknown key; did you mean {near}?")
    for setting in shared:
        if setting.path[0] in keys:
            raise ConfigError(
                f"{setting.where}: belongs to one server, such as "
                f"servers: {{{name}: {{{setting.name}: {setting.value}}}}}"
            )
    by_name = [Setting((_ROLE,), name, DEFAULT, SERVERS)] if name in _role().choices else []
    layers = (shared, by_name, [setting for setting in own if setting.path[0] not in keys])
    others = [flag for flag in flags if flag.path[0] not in keys]
    mine = {setting.path[0]: setting for setting in (*own, *flags) if setting.path[0] in keys}
    return _Entry(name, layers, _role_in([*layers, others]), others, mine)


def _entries_of_files(
    files: Sequence[str], contents: Sequence[Sequence[Setting]], flags: Sequence[Setting]
) -> list[_Entry]:
    """A server for each file, and a frontend if there are several."""
    for setting in [*(s for content in contents for s in content), *flags]:
        if setting.path[0] == SERVERS:
            raise ConfigError(
                f"{setting.where}: give a file with `servers` alone, as the only --config"
            )
    entries: list[_Entry] = []
    for path, content in zip(files, contents, strict=True):
        content = [setting for setting in content if setting.path[0] != SUPERVISION]
        role = _role_in([content])
        name = role if len(files) == 1 or role != "mixed" else Path(path).stem
        taken = [entry.name for entry in entries if entry.name.partition("-")[0] == name]
        name = f"{name}-{len(taken) + 1}" if taken else name
        # As keys that servers share: the ports of files that are used together may be equal.
        entries.append(_Entry(name, (content, ()), role))
    if len(entries) > 1 and not any(entry.role == "frontend" for entry in entries):
        as_frontend = [Setting((_ROLE,), "frontend", DEFAULT, _ROLE)]
        model = [s for s in entries[0].layers[0] if own_name(s) not in _ADDRESS]
        entries.append(_Entry("frontend", (model, as_frontend), "frontend"))
    return entries


def _on_shared_topic(entry: _Entry, entries: Sequence[_Entry], flags: Sequence[Setting]) -> _Entry:
    """The entry with the defaults of servers that work together: a topic, a broker of their own.

    Raises:
        ConfigError: somebody asks for `scheduler_name: local`.
    """
    layers = [layer for other in entries for layer in (*other.layers, other.flags, flags)]
    for setting in (setting for layer in layers for setting in layer):
        if own_name(setting) == "scheduler_name" and setting.value == "local":
            raise ConfigError(
                f"{setting.where}: local is for a server alone; several servers need global or "
                "splitwise"
            )
    written = {own_name(setting) for layer in layers for setting in layer}
    is_split = any(other.role in ("prefill", "decode") for other in entries)
    defaults = {"scheduler_name": "splitwise" if is_split else "global"}
    if not written & {"scheduler_host", "scheduler_port", "scheduler_db"}:
        defaults["scheduler_url"] = "embedded"
    layer = [Setting((key,), value, DEFAULT, key) for key, value in defaults.items()]
    return dataclasses.replace(entry, layers=(layer, *entry.layers))


def _public_roles(roles: set[str]) -> set[str]:
    """Roles of the servers that answer at the launch's address.

    Raises:
        ConfigError: the servers could not compute an answer together.
    """
    missing = {"prefill": "decode", "decode": "prefill"}
    for role, other in missing.items():
        if role in roles and not roles & {"mixed", other}:
            raise ConfigError(f"{SERVERS}: a server of role {role} needs one of role {other}")
    if roles == {"frontend"}:
        raise ConfigError(
            f"{SERVERS}: frontends compute nothing; add a server of another role "
            f"({', '.join(choice for choice in _role().choices if choice != 'frontend')})"
        )
    for role in ("frontend", "mixed"):
        if role in roles:
            return {role}
    return roles


def _servers(entry: _Entry, flags: Sequence[Setting], is_public: bool) -> list[ServerPlan]:
    options = {found.path[0]: found for found in options_of(ServerKeys)}
    count_setting, cpus_setting = entry.keys.get("count"), entry.keys.get("cpus")
    count = convert(options["count"], count_setting) if count_setting else 1
    assert isinstance(count, int)
    cpus = read_processors(cpus_setting, count) if cpus_setting else [None] * count
    *shared, own = entry.layers
    if not is_public:
        # Their addresses are their own, and nobody needs to know them.
        shared = [[s for s in layer if own_name(s) not in _ADDRESS] for layer in shared]
        flags = [flag for flag in flags if own_name(flag) not in _ADDRESS]
    place = {"host": "127.0.0.1"} if is_public else {"host": "127.0.0.1", "port": 0}
    address = [Setting((key,), value, DEFAULT, key) for key, value in place.items()]
    loaded = assemble([environment(), address, *shared, own, flags, entry.flags])
    return [
        ServerPlan(
            entry.name if count == 1 else f"{entry.name}-{index + 1}",
            loaded if is_public or index == 0 else _next_port(loaded, index),
            cpus[index],
            is_public,
        )
        for index in range(count)
    ]


def _next_port(loaded: LoadedConfig, index: int) -> LoadedConfig:
    """The configuration of a further server of the same kind."""
    server = loaded.config.server
    if server.port == 0:
        return loaded
    server = dataclasses.replace(server, port=server.port + index)
    config = dataclasses.replace(loaded.config, server=server)
    return dataclasses.replace(loaded, config=config)


def _supervision(settings: Sequence[Setting]) -> SupervisionConfig:
    """The keys of the section, from file and flags."""
    options = {found.path[0]: found for found in options_of(SupervisionConfig)}
    values: dict[str, object] = {}
    found: list[Setting] = []
    for setting in settings:
        if setting.path == (SUPERVISION,):
            if not isinstance(setting.value, dict):
                raise ConfigError(f"{setting.where}: must be a map, got {setting.value!r}")
            found += members_of(setting)
        elif setting.path[0] == SUPERVISION:
            found.append(setting)
    for setting in found:
        key = ".".join(setting.path[1:])
        if key not in options:
            near = nearest(key, list(options))
            remedy = f"did you mean {near}?" if near else f"known keys: {', '.join(options)}"
            raise ConfigError(f"{setting.where}: unknown key; {remedy}")
        values[key] = convert(options[key], setting)
    return SupervisionConfig(**values)  # type: ignore[arg-type]


def _inside(setting: Setting) -> Setting:
    """A setting of `servers.NAME` as the server itself would have it."""
    members = tuple(map(_inside, setting.members))
    return dataclasses.replace(setting, path=setting.path[2:], members=members)


def _role() -> Option:
    return next(found for found in options_of(TopicConfig) if found.path == (_ROLE,))


def _role_in(layers: Sequence[Sequence[Setting]]) -> str:
    """The role that settings give, the weakest layer first."""
    role = "mixed"
    for setting in (setting for layer in layers for setting in layer):
        if own_name(setting) == _ROLE:
            role = str(convert(_role(), setting))
    return role
