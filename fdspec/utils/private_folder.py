# SPDX-License-Identifier: Apache-2.0
"""Private folders for sockets: nobody else may look in, and none outlives its process for long."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

# A unix socket's path has at most about 107 bytes; a name takes some of them.
_LONGEST_PARENT = 70
_NAME = re.compile(r"fdspec-(\d+)-\w+")


def make_private_folder() -> Path:
    """A new folder of mode 0700, short enough for a unix socket's path.

    Its maker removes it. What makers left that were killed before they could is removed here.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > _LONGEST_PARENT:
        parent = Path("/tmp")
    _remove_leftovers(parent)
    return Path(tempfile.mkdtemp(prefix=f"fdspec-{os.getpid()}-", dir=parent))


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob("fdspec-*"):
        match = _NAME.fullmatch(folder.name)
        if match and not _is_running(int(match[1])):
            # Somebody else's cannot be removed.
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return False
    except PermissionError:
        pass
    return True
