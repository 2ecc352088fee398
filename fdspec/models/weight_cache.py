# SPDX-License-Identifier: Apache-2.0
"""The folder with packed weights of earlier starts: finds, keeps and, when it is full, drops files.

A file's name says what it was made from, so that a file which exists fits; one that is damaged is
made again. Nothing here may keep a model from loading: what goes wrong is logged. `loading.py`
calls it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from fdspec.models.packed_file import DamagedFile, PackedFile, PackedFileWriter
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_ENDING = ".weights"
_UNFINISHED = ".tmp"
_ABANDONED_AFTER_S = 24 * 3600


def user_cache_folder() -> Path:
    """$XDG_CACHE_HOME/fdspec/weights, below ~/.cache by default."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "fdspec" / "weights"


class WeightCache:
    """Files of packed weights by key.

    Args:
        folder: made when the first file is kept.
        max_bytes: those used least recently go when all files together are larger.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    def open(self, key: str) -> PackedFile | None:
        """The weights of a key, None if there are none that can be used."""
        path = self._path(key)
        try:
            file = PackedFile(path)
        except FileNotFoundError:
            return None
        except (OSError, DamagedFile) as error:
            self.report_damage(key, error)
            return None
        # Says that it has been used; a folder that can only be read keeps no order.
        with contextlib.suppress(OSError):
            os.utime(path)
        return file

    def report_damage(self, key: str, error: Exception) -> None:
        """Say that a key's file is of no use; the next `create` replaces it."""
        logger.warning("%s: %s; the weights are packed again", self._path(key), error)

    def create(self, key: str) -> PackedFileWriter | None:
        """A writer for a key's file, to be published or discarded; None if none can be made."""
        # Several processes or threads may do the same at once; the last one to publish wins.
        path = self.folder / f".{key}.{secrets.token_hex(8)}{_UNFINISHED}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return PackedFileWriter(path)
        except OSError as error:
            self.report_failure(error)
            return None

    def publish(self, key: str, writer: PackedFileWriter) -> None:
        """Make a finished file the key's, in one step, and keep the folder within its limit."""
        try:
            size_bytes = writer.finish()
            os.replace(writer.path, self._path(key))
            self._shrink(keep=self._path(key))
        except OSError as error:
            self.report_failure(error)
            self.discard(writer)
            return
        writer.close()
        logger.info(
            "packed weights kept for the next start: %s (%d MB)",
            self._path(key),
            size_bytes // 10**6,
        )

    def discard(self, writer: PackedFileWriter) -> None:
        """Remove an unfinished file."""
        writer.close()
        with contextlib.suppress(OSError):
            writer.path.unlink(missing_ok=True)

    def report_failure(self, error: OSError) -> None:
        """Say that weights could not be kept, and what to do."""
        logger.warning(
            "packed weights cannot be kept in %s (%s); the next start packs them again. "
            "weight_cache_folder names another folder, weight_cache_gib: 0 turns this off",
            self.folder,
            error,
        )

    def _path(self, key: str) -> Path:
        return self.folder / (key + _ENDING)

    def _shrink(self, keep: Path) -> None:
        """Remove what was used least recently, and what a process that died has left."""
        files = []
        for path in self.folder.iterdir():
            facts = path.stat()
            if path.suffix == _ENDING:
                files.append((facts.st_mtime_ns, facts.st_size, path))
            elif path.suffix == _UNFINISHED and time.time() - facts.st_mtime > _ABANDONED_AFTER_S:
                path.unlink(missing_ok=True)
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            if path != keep:
                # Processes that have it mapped keep it until they end.
                path.unlink(missing_ok=True)
                total -= size
