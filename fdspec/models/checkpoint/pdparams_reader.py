# SPDX-License-Identifier: Apache-2.0
"""Reads Paddle's `.pdparams` files, which are pickles, without running anything that is in them.

A pickle may name any function to be called. Here the four names of numpy that such a file needs
stand for small recorders of this module, every other name is an error, and arrays are made from the
recorded bytes after their type and size have been checked. Neither numpy's unpickling nor Paddle's
runs. A file is read into memory as a whole. The weight loader calls it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import CheckpointError
from fdspec.models.checkpoint.base import Tensor, check_shape

# numpy's names of the types that weights may have; u2 are the bits of bfloat16.
_DTYPES = {name: np.dtype(f"<{name}") for name in ("f4", "f2", "u2")}
# Paddle's table from names in a state dict to names of parameters.
_NAME_TABLE = "StructuredToParameterName@@"


class PdparamsCheckpoint:
    """The tensors of one or several files.

    Args:
        files: all shards.

    Raises:
        CheckpointError: a file is damaged, names something that arrays do not need, or two files
            hold the same tensor.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._places: dict[str, Path] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        for file in self._files:
            for name, array in _read(file).items():
                if name in self._places:
                    raise CheckpointError(
                        f"{file}: tensor {name!r} is also in {self._places[name]}"
                    )
                self._places[name] = file
                self._arrays[name] = array

    def names(self) -> Sequence[str]:
        """All tensors of all files."""
        return list(self._arrays)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Of a tensor that exists."""
        return self._arrays[name].shape

    def file_of(self, name: str) -> str:
        """The file that holds a tensor, or all of them."""
        return str(self._places.get(name, ", ".join(map(str, self._files))))

    def bits_per_weight(self, name: str) -> float:
        """32 or 16."""
        return 8 * self._arrays[name].itemsize

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor: float32, float16, or bfloat16 as uint16. Not to be written.

        Raises:
            CheckpointError: no such tensor, or another shape.
        """
        array = self._arrays.get(name)
        if array is None:
            raise CheckpointError(f"{self.file_of(name)}: tensor {name!r} {list(shape)} is missing")
        check_shape(name, array.shape, shape, self.file_of(name))
        return array


class _Dtype:
    """Stands for numpy.dtype: keeps the type's name."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and fields, which no allowed type needs: all are little-endian."""
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|", "="):
            raise pickle.UnpicklingError("an array is not little-endian")


class _Array:
    """Stands for numpy.ndarray: keeps what the file says of one."""

    shape: object = None
    dtype: object = None
    is_fortran: object = None
    data: object = None

    def __setstate__(self, state: object) -> None:
        """(version, shape, type, columns first, bytes), as numpy writes it."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array has an unknown form")
        _, self.shape, self.dtype, self.is_fortran, self.data = state


def _empty_array(*_: object) -> _Array:
    """Stands for numpy's _reconstruct."""
    return _Array()


def _latin_bytes(text: object, encoding: object = "latin1") -> bytes:
    """Stands for _codecs.encode, which protocol 2 spells bytes with."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes have an unknown form")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _latin_bytes,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in; nothing is imported.

        Raises:
            UnpicklingError: the file names anything else.
        """
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which arrays do not need")


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with file.open("rb") as stream:
            state = _Reader(stream).load()
    except Exception as error:  # A damaged pickle raises nearly anything.
        raise CheckpointError(
            f"{file}: cannot be read as a table of arrays: {error}. Nothing but plain arrays is "
            "read from .pdparams files, because a pickle could run any program; save the model as "
            "safetensors"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: holds a {type(state).__name__} instead of named arrays")
    return {
        str(name): _to_array(file, str(name), value)
        for name, value in state.items()
        if name != _NAME_TABLE
    }


def _to_array(file: Path, name: str, value: object) -> NDArray[Any]:
    # Paddle writes a tensor inside a nested table as (its name, the array).
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    if not isinstance(value, _Array) or not isinstance(value.dtype, _Dtype):
        raise CheckpointError(f"{file}: {name!r} is no array")
    shape, data = value.shape, value.data
    dtype = _DTYPES.get(str(value.dtype.name))
    if dtype is None:
        raise CheckpointError(
            f"{file}: tensor {name!r} has type {value.dtype.name!r}, which is not supported; "
            f"supported: {', '.join(_DTYPES)} (the last are the bits of bfloat16)"
        )
    is_shape = isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)
    if not is_shape or not isinstance(data, bytes):
        raise CheckpointError(f"{file}: tensor {name!r} is damaged")
    assert isinstance(shape, tuple)
    array = np.frombuffer(data, dtype=dtype)
    if array.size != int(np.prod(shape, dtype=np.int64)):
        raise CheckpointError(f"{file}: tensor {name!r} {list(shape)} has {array.size} values")
    return array.reshape(shape, order="F" if value.is_fortran else "C")
