# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels into the extension module `fdspec/ops/_core` with the system's C++ compiler.

Owns compiler flags and incremental builds; knows nothing of single ops: every file below csrc/ is
taken. Used as `python -m fdspec.ops.build`, by setup.py and, for Paddle's custom ops, by
paddle_ops.py.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_MAX_OUTPUT_CHARS = 8000

SOURCE_DIR = Path(__file__).resolve().parent / "csrc"
PACKAGE_DIR = SOURCE_DIR.parent
# The source that defines the Python module.
MODULE_SOURCE = Path("bindings", "module.cc")

BASE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    # Results must not depend on what a compiler likes to fuse.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
)
X86_ISA_FLAGS = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx2", "-mfma", "-mf16c"),
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
        "-mprefer-vector-width=512",
        # GCC's own AVX-512 intrinsics trip these warnings.
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    ),
}
# Flags of x.amx.cc files, on top of those of avx512.
X86_TILE_FLAGS = ("-mamx-tile", "-mamx-int8", "-mamx-bf16", "-mavx512bf16")


class BuildError(RuntimeError):
    """The kernels could not be compiled; the message says what to install or shows the compiler."""


@dataclass(frozen=True)
class CompileUnit:
    """One object file.

    Attributes:
        source: the C++ file.
        object_path: where the object goes.
        flags: flags on top of BASE_FLAGS.
    """

    source: Path
    object_path: Path
    flags: tuple[str, ...]


def core_filename() -> str:
    """Returns the file name of the extension module for this Python."""
    return "_core" + str(sysconfig.get_config_var("EXT_SUFFIX"))


def isa_flags() -> dict[str, tuple[str, ...]]:
    """Returns the instruction set levels built on this machine's architecture, with their flags."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return dict(X86_ISA_FLAGS)
    return {"portable": ()}


def find_compiler() -> str:
    """Returns the C++ compiler: $CXX, else g++, else clang++.

    Raises:
        BuildError: there is none.
    """
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError(
        "no C++ compiler found: fdspec's kernels need g++ >= 9 or clang++ >= 10. "
        "Install one (Debian and Ubuntu: apt install g++) or point CXX at it."
    )


def python_include_dir() -> Path:
    """Returns the directory with Python.h.

    Raises:
        BuildError: it is missing.
    """
    python_include = Path(sysconfig.get_path("include"))
    if not (python_include / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BuildError(
            f"Python.h is not in {python_include}: install Python's headers "
            f"(Debian and Ubuntu: apt install python{version}-dev)."
        )
    return python_include


def core_include_flags() -> list[str]:
    """Returns where the core module's headers are.

    Raises:
        BuildError: the headers of Python or pybind11 are missing.
    """
    try:
        import pybind11
    except ImportError as error:
        raise BuildError("pybind11 is missing: pip install pybind11") from error
    return _include_flags([python_include_dir(), Path(pybind11.get_include())])


def core_units(build_dir: Path) -> list[CompileUnit]:
    """Returns what the core module is made of: kernels once for each level, other files once."""
    units = []
    for source in sorted(SOURCE_DIR.rglob("*.cc")):
        relative = source.relative_to(SOURCE_DIR)
        if relative.parts[0] == "paddle":
            continue
        stem = "-".join(relative.with_suffix("").parts)
        if source.name.endswith(".kernel.cc"):
            for isa, flags in isa_flags().items():
                path = build_dir / f"{stem}.{isa}.o"
                units.append(CompileUnit(source, path, (*flags, f"-DFDSPEC_ISA={isa}")))
        elif source.name.endswith(".amx.cc"):
            if base := isa_flags().get("avx512"):
                flags = (*base, *X86_TILE_FLAGS, "-DFDSPEC_ISA=avx512")
                units.append(CompileUnit(source, build_dir / f"{stem}.o", flags))
        else:
            flags = _module_flags() if relative == MODULE_SOURCE else ()
            units.append(CompileUnit(source, build_dir / f"{stem}.o", flags))
    return units


def headers_digest() -> str:
    """Returns what identifies the layout of the kernels' arguments: a digest of all headers.

    The core module carries the digest it was built with as `headers_digest`; a library that is
    linked to it must have been built with the same.
    """
    return _digest((), sorted(SOURCE_DIR.rglob("*.h")))[:16]


def _module_flags() -> tuple[str, ...]:
    return (f'-DFDSPEC_HEADERS_DIGEST="{headers_digest()}"',)


def build_core(output_dir: Path = PACKAGE_DIR, *, build_dir: Path | None = None) -> Path:
    """Builds the extension module; does nothing where it is up to date.

    Args:
        output_dir: folder that receives the module.
        build_dir: folder for object files; default_build_dir() if None.

    Returns:
        The path of the module.

    Raises:
        BuildError: a tool or header is missing, or the compiler failed.
    """
    directory = build_dir or default_build_dir()
    output = output_dir / core_filename()
    return build_library(core_units(directory), output, core_include_flags(), link_flags=())


def build_paddle_ops(*, build_dir: Path | None = None) -> Path:
    """Builds the library that registers the ops as Paddle custom ops; needs Paddle installed.

    It holds no kernels: it is linked to the core module, which must have been built already.

    Args:
        build_dir: folder for object files and the library; default_build_dir() if None.

    Returns:
        The path of the library.

    Raises:
        BuildError: Paddle, the core module, a tool or header is missing, or the compiler failed.
    """
    try:
        import paddle
    except ImportError as error:
        raise BuildError("paddle is missing: pip install paddlepaddle") from error
    core = PACKAGE_DIR / core_filename()
    if not core.is_file():
        raise BuildError(f"{core} is missing: run `python -m fdspec.ops.build` first")
    directory = (build_dir or default_build_dir()) / f"paddle-{paddle.__version__}"
    include = Path(paddle.sysconfig.get_include())
    compatible = include / "paddle/phi/api/include/compat"
    includes = [include, include / "third_party", compatible]
    includes += [compatible / "torch/csrc/api/include", python_include_dir()]
    units = [
        CompileUnit(source, directory / f"{source.stem}.o", ())
        for source in sorted((SOURCE_DIR / "paddle").glob("*.cc"))
    ]
    library_dir = Path(paddle.__file__).parent / "base"
    link_flags = [f"-L{core.parent}", f"-l:{core.name}", f"-Wl,-rpath,{core.parent}"]
    link_flags += ["-Wl,--no-as-needed", f"-L{library_dir}", "-l:libpaddle.so"]
    link_flags += [f"-Wl,-rpath,{library_dir}"]
    output = directory / "fdspec_paddle_ops.so"
    return build_library(units, output, _include_flags(includes), link_flags=link_flags)


def default_build_dir() -> Path:
    """Returns where object files are kept: build/ops of a checkout, else the user's cache."""
    beside = PACKAGE_DIR.parent.parent / "build" / "ops"
    if (
        os.access(PACKAGE_DIR.parent.parent, os.W_OK)
        and (PACKAGE_DIR.parent.parent / ".git").exists()
    ):
        return beside
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "fdspec" / "ops"


def build_library(
    units: Sequence[CompileUnit],
    output: Path,
    include_flags: Sequence[str],
    *,
    link_flags: Sequence[str],
) -> Path:
    """Compiles what changed and links it.

    Args:
        units: the object files.
        output: the shared library to write; replaced in one step, so that a process that has the
            old one loaded keeps it.
        include_flags: where headers are.
        link_flags: additional flags for the linker.

    Returns:
        `output`.

    Raises:
        BuildError: the compiler failed; the message holds its output.
    """
    compiler = find_compiler()
    objects = [unit.object_path for unit in units]
    with _locked(objects[0].parent):
        with ThreadPoolExecutor(max_workers=_num_jobs()) as executor:
            compiled = executor.map(lambda unit: _compile(compiler, unit, include_flags), units)
            changed = any(list(compiled))
        if changed or not output.is_file() or _is_older(output, objects):
            temporary = output.with_name(output.name + f".{os.getpid()}.tmp")
            names = [str(path) for path in objects]
            _run([compiler, "-shared", "-o", str(temporary), *names, "-pthread", *link_flags])
            temporary.replace(output)
    return output


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps other processes from building in the same directory at the same time."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _include_flags(third_party: Iterable[Path]) -> list[str]:
    """Returns flags for our headers and, without their warnings, those of others."""
    flags = [f"-I{SOURCE_DIR}"]
    for path in third_party:
        flags += ["-isystem", str(path)]
    return flags


def _num_jobs() -> int:
    return max(1, len(os.sched_getaffinity(0)))


def _is_older(path: Path, others: Iterable[Path]) -> bool:
    return any(other.stat().st_mtime > path.stat().st_mtime for other in others)


def _compile(compiler: str, unit: CompileUnit, include_flags: Sequence[str]) -> bool:
    """Compiles one file if its text, a header or the command changed; returns whether it did."""
    depends = unit.object_path.with_suffix(".d")
    stamp = unit.object_path.with_suffix(".hash")
    command = [compiler, *BASE_FLAGS, *unit.flags, *include_flags, "-c", str(unit.source)]
    command += ["-o", str(unit.object_path), "-MMD", "-MF", str(depends)]
    built = unit.object_path.is_file() and stamp.is_file() and depends.is_file()
    if built and stamp.read_text() == _digest(command, _own_dependencies(depends)):
        return False
    unit.object_path.parent.mkdir(parents=True, exist_ok=True)
    _run(command)
    stamp.write_text(_digest(command, _own_dependencies(depends)))
    return True


def _own_dependencies(depends: Path) -> list[Path]:
    """Returns this project's files in a compiler's dependency file."""
    names = depends.read_text().replace("\\\n", " ").split()[1:]
    # Compilers and their caches may name files relative to where they ran.
    paths = {Path(name).absolute() for name in names}
    return sorted(path for path in paths if path.is_relative_to(SOURCE_DIR))


def _digest(command: Sequence[str], files: Iterable[Path]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for path in files:
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        output = (result.stdout + result.stderr)[:_MAX_OUTPUT_CHARS]
        raise BuildError(f"{' '.join(command)}\n{output}")
    if result.stderr:
        sys.stderr.write(result.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fdspec.ops.build", description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=PACKAGE_DIR, help="where _core goes")
    parser.add_argument("--build-dir", type=Path, help="where object files go")
    parser.add_argument("--paddle", action="store_true", help="build the Paddle custom ops too")
    options = parser.parse_args(arguments)
    try:
        print(build_core(options.output_dir, build_dir=options.build_dir))
        if options.paddle:
            print(build_paddle_ops(build_dir=options.build_dir))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
