# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a local checkpoint.

Owns which file names mean what; never opens them and never downloads. Configuration reading and
the checkpoint readers call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fdspec.core.errors import CheckpointError
from fdspec.utils.json_file import read_json_object

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Where the weights are.

    Attributes:
        folder: folder with config.json and tokenizer files.
        gguf: the GGUF file, or None for safetensors.
        safetensors: the safetensors files, shards in order; empty if there are none.
        pdparams: Paddle's files, likewise.
    """

    folder: Path
    gguf: Path | None
    safetensors: tuple[Path, ...]
    pdparams: tuple[Path, ...] = ()

    @property
    def weights(self) -> tuple[Path, ...]:
        """All files with weights; only one kind of them is there."""
        return self.safetensors + self.pdparams + (() if self.gguf is None else (self.gguf,))


def find_checkpoint(path: Path) -> CheckpointFiles:
    """Weights at a path: a folder, or a .gguf, .safetensors or .pdparams file.

    A folder's safetensors files win over a GGUF file beside them, and that over pdparams files.

    Raises:
        CheckpointError: nothing that can be read, with what to do.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if path.is_file():
        if path.suffix == ".gguf":
            return CheckpointFiles(path.parent, path, ())
        if path.suffix == ".safetensors":
            return CheckpointFiles(path.parent, None, (path,))
        if path.suffix == ".pdparams":
            return CheckpointFiles(path.parent, None, (), (path,))
        raise CheckpointError(
            f"{path}: not a checkpoint; expected a folder, .gguf, .safetensors or .pdparams"
        )
    if safetensors := _safetensors_files(path):
        return CheckpointFiles(path, None, safetensors)
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return CheckpointFiles(path, gguf_files[0], ())
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        raise CheckpointError(f"{path}: holds several GGUF files, name one of them: {names}")
    if pdparams := tuple(sorted(path.glob("*.pdparams"))):
        return CheckpointFiles(path, None, (), pdparams)
    raise CheckpointError(f"{path}: no .safetensors, .gguf or .pdparams file{_hint(path)}")


def _safetensors_files(folder: Path) -> tuple[Path, ...]:
    index = folder / _INDEX
    if index.exists():
        shards = read_json_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CheckpointError(f"{index}: 'weight_map' is missing or empty")
        files = tuple(folder / name for name in sorted(set(shards.values())))
        for file in files:
            if not file.exists():
                raise CheckpointError(f"{file}: no such file, but {_INDEX} names it")
        return files
    if (folder / _SINGLE).exists():
        return (folder / _SINGLE,)
    return tuple(sorted(folder.glob("*.safetensors")))


def _hint(folder: Path) -> str:
    for pattern in ("*.bin", "*.pt", "*.pth"):
        if any(folder.glob(pattern)):
            return (
                f"; {pattern} weights are not supported: save the model as safetensors "
                "(save_pretrained(folder, safe_serialization=True))"
            )
    return ""
