# SPDX-License-Identifier: Apache-2.0
"""Show a configuration as YAML with the origin of each value, and the text of `--help`.

What `render_config` prints can be used as a --config file again, except for secrets.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import yaml

from fdspec.config.engine_config import EngineConfig
from fdspec.config.options import Option, options_of
from fdspec.config.schema import sections

_COMMENT_COLUMN = 48
_HELP_COLUMN = 38
_INDENT = 2
_WIDTH = 100
_METAVARS = {
    "bool": "[true|false]",
    "int": "N",
    "float": "X",
    "str": "TEXT",
    "strings": "TEXT ...",
    "map": "JSON",
    "maps": "JSON",
}


def render_config(config: EngineConfig, origins: Mapping[str, str]) -> str:
    """The configuration as YAML; each line ends with the origin of its value."""
    lines: list[str] = []
    for section in sections():
        part = getattr(config, section.field)
        lines.append(f"# {section.title}")
        if section.key is not None:
            value = "" if part is not None else " null"
            lines.append(_with_comment(f"{section.key}:{value}", origins[section.key]))
        if part is not None:
            indent = "" if section.key is None else "  "
            for option in section.options:
                text, origin = _value(option, part), origins[option.name]
                if option.secret and getattr(part, option.path[-1]):
                    text, origin = "null", f"{origin} (set, not shown)"
                lines.append(_with_comment(f"{indent}{option.path[-1]}: {text}", origin))
    return "\n".join(lines)


def help_text(program: str) -> str:
    """Usage of a program, all options by section."""
    lines = [
        f"usage: {program} [--config FILE.yaml] [--option VALUE ...]",
        "",
        *textwrap.wrap(
            "Every option is also a key of the YAML file, with underscores. The command line wins "
            "over the file, the file over the defaults. Flags and keys of FastDeploy, vLLM and "
            "MindIE are understood too; those without effect are named in one line. Lists are "
            "written a b or '[a, b]'.",
            _WIDTH,
        ),
        "",
        "General:",
        *_entry("--config FILE", "YAML file with any of the keys below."),
        *_entry("--print-config", "Print the result with the origin of each value, and end."),
        *_entry(
            "--dry-run",
            "Print what the model needs of memory on each rank, and whether it fits, and end; no "
            "weights are read. Status 0 if it fits, else 1.",
        ),
        *_entry("--version", "Print the version, and end."),
        *_entry("-h, --help", "Print this, and end."),
    ]
    for section in sections():
        lines += ["", f"{section.title}:"]
        if section.key is not None:
            lines += _section_entry(section.key, section.nullable)
        for option in section.options:
            head, text = f"{option.flag} {_metavar(option)}", _describe(option)
            if len(head) > _WIDTH - _INDENT:
                head = f"{option.flag} NAME"
                text += f" One of {', '.join(option.choices)}."
            lines += _entry(head, text)
    return "\n".join(lines)


def _section_entry(key: str, nullable: bool) -> list[str]:
    off = ", or off" if nullable else ""
    flag = "--" + key.replace("_", "-")
    return _entry(f"{flag} JSON", f"The whole section as a JSON map{off}; replaces the file's.")


def _entry(head: str, text: str) -> list[str]:
    head = " " * _INDENT + head
    wrapped = textwrap.wrap(text, _WIDTH - _HELP_COLUMN)
    indent = " " * _HELP_COLUMN
    if len(head) >= _HELP_COLUMN:
        return [head, *(indent + line for line in wrapped)]
    return [head.ljust(_HELP_COLUMN) + wrapped[0], *(indent + line for line in wrapped[1:])]


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    return _METAVARS[option.kind]


def _describe(option: Option) -> str:
    if option.is_required:
        return f"{option.help} Required."
    if "Default:" in option.help or option.default in (None, ()):
        return option.help
    return f"{option.help} Default: {_scalar(option.default)}."


def _value(option: Option, part: object) -> str:
    value = getattr(part, option.path[-1])
    if option.kind == "maps":
        value = [_changed_values(member) for member in value]
    elif option.kind == "map" and value is not None:
        value = dict(value)
    return _scalar(list(value) if isinstance(value, tuple) else value)


def _changed_values(part: object) -> dict[str, object]:
    """Keys of a part that are not at their defaults."""
    return {
        option.path[-1]: value
        for option in options_of(type(part))
        if (value := getattr(part, option.path[-1])) != option.default
    }


def _scalar(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _with_comment(text: str, origin: str) -> str:
    return f"{text.ljust(_COMMENT_COLUMN)}  # {origin}"
