# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: the compiled kernels and everything else that pyproject.toml describes.

Compiler flags and file lists are those of `fdspec/ops/build.py`, read from its path so that the
build needs neither fdspec nor its dependencies installed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def _load_ops_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "fdspec_ops_build", ROOT / "fdspec" / "ops" / "build.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BuildKernels(build_ext):
    """Hands the compilation of `fdspec.ops._core` over to fdspec/ops/build.py."""

    def build_extension(self, ext: Extension) -> None:
        """Build the one extension module into the place where setuptools wants it."""
        ops_build = _load_ops_build()
        output_dir = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        output_dir.mkdir(parents=True, exist_ok=True)
        try:
            ops_build.build_core(output_dir, build_dir=Path(self.build_temp).resolve() / "ops")
        except ops_build.BuildError as error:
            raise SystemExit(f"error: {error}") from None


setup(
    ext_modules=[Extension("fdspec.ops._core", sources=[])],
    cmdclass={"build_ext": BuildKernels},
)
