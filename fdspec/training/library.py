# SPDX-License-Identifier: Apache-2.0
"""RecordingLibrary: a folder of recordings that grows shard by shard.

Owns which shard holds which conversations. Making data can be stopped at any time: whole shards
stay, and the next run goes on behind them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fdspec.core.errors import FdspecError
from fdspec.training.recording import Recording, read_shard, write_shard
from fdspec.training.rollout import Script

SHARD_SIZE = 32

ScriptsOf = Callable[[range], Sequence[Script]]
"""Scripts of some numbers; fewer, at last none, where a file of prompts ends."""


class RecordingLibrary:
    """Recordings of one model for one purpose.

    Args:
        folder: made if it is not there.
        origin: what decides the recordings, such as the model's digest.

    Raises:
        FdspecError: the folder holds recordings of another origin.
    """

    def __init__(self, folder: Path, origin: Mapping[str, object]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "origin.json"
        text = json.dumps(origin, indent=2, sort_keys=True)
        if not path.exists():
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            raise FdspecError(
                f"{folder} holds recordings of another model, seed or file of prompts "
                f"({path.name} says which); choose another --recordings or delete it"
            )

    def extend(
        self,
        scripts_of: ScriptsOf,
        record: Callable[[Sequence[Script]], list[Recording]],
        first: int = 0,
    ) -> Iterator[list[Recording]]:
        """Shard after shard, those on disk first and then new ones, until there are no scripts.

        Args:
            scripts_of: scripts of conversations 0, 1, ...
            record: plays scripts.
            first: shard to begin with.
        """
        shard = first
        while True:
            path = self._path(shard)
            if path.exists():
                yield read_shard(path)
            else:
                scripts = scripts_of(range(shard * SHARD_SIZE, (shard + 1) * SHARD_SIZE))
                if not scripts:
                    return
                recordings = record(scripts)
                write_shard(path, recordings)
                yield recordings
            shard += 1

    def _path(self, shard: int) -> Path:
        return self._folder / f"{shard:05d}.safetensors"
