# SPDX-License-Identifier: Apache-2.0
"""Write docs/configuration.md from the configuration's own descriptions.

Run it after a change of a key: `python -m scripts.config_reference`. A test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from fdspec.config.foreign import SECTION_ALIASES, ForeignKey, foreign_keys
from fdspec.config.foreign_values import METHOD_ALIASES
from fdspec.config.options import Option
from fdspec.config.schema import Section, sections

PATH = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

HEAD = """\
# Configuration

Every key is a line of a YAML file (`--config FILE.yaml`) and a flag (`max_num_seqs: 16` or
`--max-num-seqs 16`). The command line wins over the file, the file over the defaults.
`--print-config` shows the result with the origin of each value. An unknown key is an error that
names the nearest one.

A section such as `speculative_config` is a map in YAML and JSON on the command line, where it
replaces the file's whole section; a dotted flag changes a single key of it:

```
--speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'
--speculative-config.num_speculative_tokens 3
--speculative-config off
```

A list is written as several words or as in YAML: `--kv-transfer-transports shm zmq-tcp` or
`--kv-transfer-transports '[shm, zmq-tcp]'`.

This page is written by `python -m scripts.config_reference`.
"""

FOREIGN_HEAD = """\
## Names of other servers

Keys of FastDeploy, vLLM and MindIE that have another name here, or no effect. One that has no
effect is named in one warning when the server starts; one whose loss would change results is
refused. Values that say what is done anyway are fine.
"""


def reference() -> str:
    """The text of the page."""
    parts = [HEAD, *map(_section, sections()), FOREIGN_HEAD]
    parts.append(_table(("key", "becomes"), _foreign_rows()))
    aliases = ", ".join(f"`{name}` ({method})" for name, method in METHOD_ALIASES.items())
    sections_too = ", ".join(f"`{name}` is `{own}`" for name, own in SECTION_ALIASES.items())
    parts.append(f"Methods have other names, too: {aliases}. {sections_too}.\n")
    return "\n".join(parts)


def _section(section: Section) -> str:
    key = f": `{section.key}`" if section.key else ""
    rows = [
        (f"`{option.path[-1]}`", _default(option), _meaning(option)) for option in section.options
    ]
    return f"## {section.title}{key}\n\n{_table(('key', 'default', 'meaning'), rows)}"


def _default(option: Option) -> str:
    if option.is_required:
        return "required"
    if option.default in (None, ()):
        return ""
    if isinstance(option.default, tuple):
        return f"`[{', '.join(option.default)}]`"
    return f"`{yaml.safe_dump(option.default).splitlines()[0]}`"


def _meaning(option: Option) -> str:
    if len(option.choices) > 1:
        return f"{option.help} One of {', '.join(f'`{choice}`' for choice in option.choices)}."
    return option.help


def _foreign_rows() -> list[tuple[str, str]]:
    grouped: dict[str, list[str]] = {}
    for name, key in foreign_keys().items():
        grouped.setdefault(_fate(key), []).append(f"`{name}`")
    return [(", ".join(names), fate) for fate, names in grouped.items()]


def _fate(key: ForeignKey) -> str:
    if key.otherwise:
        return f"`{key.to}` or `{key.otherwise}`"
    if key.to:
        return f"`{key.to}`"
    verb = "refused" if key.refused else "no effect"
    values = [yaml.safe_dump(value).splitlines()[0] for value in key.honoured if value is not None]
    accepted = f" (fine: `{'`, `'.join(values)}`)" if values else ""
    return f"{verb}: {key.reason}{accepted}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
