# SPDX-License-Identifier: Apache-2.0
"""Model names: local paths, and hub ids against a stand-in for the three hubs on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from fdspec.core.errors import ConfigError
from fdspec.models import resolve_model

REPOSITORY = "owner/tiny-model"
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": bytes(range(256)) * 40,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"not for a server",
    "pytorch_model.bin": b"the same weights again",
    "tiny.Q4_1.gguf": b"GGUF" + bytes(100),
    "onnx/model.safetensors": b"not at the top",
}
WANTED = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}


class Hub(ThreadingHTTPServer):
    """Answers the file APIs of Hugging Face, ModelScope and AI Studio for one repository."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(FILES)
        self.served: list[str] = []
        self.cut_next_download = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        files = self.server.files
        if path == f"/api/v1/models/{REPOSITORY}/repo/files":
            entries = [
                {"Path": name, "Type": "blob", "Sha256": hashlib.sha256(data).hexdigest()}
                for name, data in files.items()
            ]
            folders = [{"Path": "onnx", "Type": "tree"}]
            self._json({"Data": {"Files": [*entries, *folders]}})
        elif path == f"/api/v1/models/{REPOSITORY}/repo":
            self._file(query["FilePath"][0])
        elif path == f"/api/v1/repos/{REPOSITORY}/git/trees/master":
            names = sorted(files)
            half = names[:3] if query["page"] == ["1"] else names[3:]
            tree = [{"path": name, "type": "blob"} for name in half]
            self._json({"tree": tree, "truncated": query["page"] == ["1"]})
        elif path.startswith(f"/api/v1/repos/{REPOSITORY}/media/"):
            self._file(path.split("/media/")[1])
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/"):
            self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": "b" * 40}
                    for name, data in files.items()
                ]
            )
        elif path.startswith(f"/api/models/{REPOSITORY}"):
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": REPOSITORY, "sha": "a" * 40, "siblings": siblings})
        elif path.startswith(f"/{REPOSITORY}/resolve/"):
            self._file(path.split("/", 5)[5])
        else:
            self.send_error(404)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {})

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self.send_error(404)
            return
        etag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": "a" * 40}
        if self.command == "HEAD":
            self._answer(200, data, etag)
            return
        self.server.served.append(name)
        start = 0
        if requested := self.headers.get("Range"):
            start = int(requested.removeprefix("bytes=").split("-")[0])
        self._answer(206 if start else 200, data[start:], etag)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.cut_next_download and len(body) > 5000:
            self.server.cut_next_download = False
            body = body[: len(body) // 2]
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["HUGGINGFACE", "MODELSCOPE", "AISTUDIO"])
def source(request, hub: Hub, monkeypatch, tmp_path) -> str:
    use_source(request.param, hub, monkeypatch, tmp_path)
    return request.param


def use_source(name: str, hub: Hub, monkeypatch, cache: Path) -> None:
    monkeypatch.setenv("FD_MODEL_SOURCE", name.lower())
    monkeypatch.setenv("FD_MODEL_CACHE", str(cache / "cache"))
    for variable in ("HF_ENDPOINT", "MODELSCOPE_ENDPOINT", "STUDIO_GIT_HOST"):
        monkeypatch.setenv(variable, hub.url)


def test_a_hub_id_brings_what_a_server_reads_and_no_more(source, hub):
    folder = resolve_model(REPOSITORY)
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert found == WANTED
    for name in WANTED:
        assert (folder / name).read_bytes() == FILES[name]
    assert sorted(hub.served) == sorted(WANTED)
    assert resolve_model(REPOSITORY) == folder
    assert sorted(hub.served) == sorted(WANTED), "a second call fetches nothing again"


def test_one_gguf_file_of_a_repository(source, hub):
    file = resolve_model(f"{REPOSITORY}/tiny.Q4_1.gguf")
    assert file.name == "tiny.Q4_1.gguf"
    assert file.read_bytes() == FILES["tiny.Q4_1.gguf"]
    assert hub.served == ["tiny.Q4_1.gguf"]


def test_what_the_hub_does_not_have(source, hub):
    with pytest.raises(ConfigError, match=f"'owner/other'.*from {source}.*failed"):
        resolve_model("owner/other")
    with pytest.raises(ConfigError, match="failed"):
        resolve_model(f"{REPOSITORY}/missing.gguf")
    hub.files = {name: data for name, data in FILES.items() if "safetensors" not in name}
    with pytest.raises(ConfigError, match=rf"no safetensors.*{REPOSITORY}/FILE\.gguf"):
        resolve_model(REPOSITORY)


def test_an_interrupted_download_goes_on(hub, monkeypatch, tmp_path):
    use_source("MODELSCOPE", hub, monkeypatch, tmp_path)
    hub.cut_next_download = True
    with pytest.raises(ConfigError, match="run again to go on"):
        resolve_model(REPOSITORY)
    folder = resolve_model(REPOSITORY)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert hub.served.count("model.safetensors") == 2


def test_a_wrong_checksum_is_not_kept(hub, monkeypatch, tmp_path):
    use_source("MODELSCOPE", hub, monkeypatch, tmp_path)
    target = tmp_path / "cache" / "modelscope" / REPOSITORY / "master" / "model.safetensors.part"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="checksum"):
        resolve_model(REPOSITORY)
    folder = resolve_model(REPOSITORY)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.parametrize("path", ["../outside.json", "/etc/passwd.json", "a/../../b.json"])
def test_files_outside_the_repository_are_refused(hub, monkeypatch, tmp_path, path):
    use_source("MODELSCOPE", hub, monkeypatch, tmp_path)
    hub.files = {**FILES, path: b"{}"}
    with pytest.raises(ConfigError, match="outside the repository"):
        resolve_model(REPOSITORY)


def test_local_paths_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(tmp_path / "models") == tmp_path / "models"
    assert resolve_model("models/tiny") == Path("models/tiny")
    with pytest.raises(ConfigError, match=r"no such file.*did you mean 'models/tiny'"):
        resolve_model("models/tinny")
    with pytest.raises(ConfigError, match="nor is there a folder"):
        resolve_model("/nowhere/at/all")
    with pytest.raises(ConfigError, match="no such file"):
        resolve_model("just-a-word")


def test_errors_of_the_environment(monkeypatch):
    monkeypatch.setenv("FD_MODEL_SOURCE", "ftp")
    with pytest.raises(ConfigError, match="HUGGINGFACE, MODELSCOPE, AISTUDIO, got 'FTP'"):
        resolve_model(REPOSITORY)
    monkeypatch.setenv("FD_MODEL_SOURCE", "AISTUDIO")
    monkeypatch.setenv("STUDIO_GIT_HOST", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1.*refused"):
        resolve_model(REPOSITORY)
