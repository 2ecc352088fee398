# SPDX-License-Identifier: Apache-2.0
"""What goes into the source archive and the wheel, and that an installed server works elsewhere."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from scripts.server_process import ServerProcess, choose_port

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("fdspec", "configs", "requirements", "scripts")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Makefile")
BUILD_SDIST = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"


@pytest.fixture
def source_copy(tmp_path):
    """A copy of the sources without anything built, so that builds leave the checkout alone."""
    folder = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(*command, cwd):
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def own_files(pattern):
    return {str(path.relative_to(ROOT)) for path in (ROOT / "fdspec").rglob(pattern)}


def test_source_archive_holds_everything_that_a_build_needs(tmp_path, source_copy):
    out = tmp_path / "out"
    out.mkdir()
    run(sys.executable, "-c", BUILD_SDIST, str(out), cwd=source_copy)
    (archive,) = out.glob("fdspec-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert own_files("*.py") | own_files("*.cc") | own_files("*.h") | own_files("*.lua") <= names
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "fdspec/py.typed"} <= names
    assert {"configs/yaml/quickstart.yaml", "requirements/demo.txt"} <= names
    assert "configs/heads/smollm2-135m-mtp/model.safetensors" in names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".gguf"))]


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_installed_server_works_in_another_folder(tmp_path, source_copy, smollm2_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    wheels, site, elsewhere = (tmp_path / name for name in ("wheels", "site", "elsewhere"))
    elsewhere.mkdir()
    build = [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(wheels), "."]
    run(*build, cwd=source_copy)
    (wheel,) = wheels.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert own_files("*.py") | own_files("*.cc") | own_files("*.h") | own_files("*.lua") <= names
    assert [name for name in names if name.startswith("fdspec/ops/_core.")]
    assert not [name for name in names if not name.startswith("fdspec")]
    run(*pip, "install", *offline, "--target", str(site), str(wheel), cwd=elsewhere)

    port = choose_port()
    command = [sys.executable, "-m", "fdspec.entrypoints.api_server", "--model", str(smollm2_path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"]
    command += ["--speculative-config", json.dumps({"method": "ngram"})]
    environment = {"PYTHONPATH": str(site)}
    with ServerProcess(command, elsewhere, port, environment=environment) as server:
        server.wait_until_healthy(300)
        body = {"prompt": "one two three four one two three", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4
