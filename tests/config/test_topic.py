# SPDX-License-Identifier: Apache-2.0
"""Keys of a scheduler topic: addresses, mistakes, and a password that nobody sees."""

from pathlib import Path

import pytest

from fdspec.config import TopicConfig, handoff, load_config
from fdspec.config.handoff import OWN_TRANSPORTS
from fdspec.config.plugins import KV_TRANSPORTS
from fdspec.config.render import render_config
from fdspec.core import ConfigError
from fdspec.entrypoints.shared_topic import check_handoff_keys
from fdspec.transfer.transports import transport_names


def load(*arguments):
    return load_config(["--model", "m", "--scheduler-name", "global", *arguments])


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ((), "redis://127.0.0.1:6379/0"),
        (
            ("--scheduler-host", "h", "--scheduler-port", "7", "--scheduler-db", "3"),
            "redis://h:7/3",
        ),
        (("--scheduler-url", "rediss://user@h:1/2"), "rediss://user@h:1/2"),
        (("--scheduler-url", "unix:///run/x.sock"), "unix:///run/x.sock"),
        (("--scheduler-url", "unix://me@/run/x.sock?db=2"), "unix://me@/run/x.sock?db=2"),
        (("--scheduler-url", "unix://~/x.sock"), f"unix://{Path.home()}/x.sock"),
        (("--scheduler-url", "zmq+tcp://127.0.0.1:5"), "zmq+tcp://127.0.0.1:5"),
        (("--scheduler-url", "zmq+ipc:///run/x"), "zmq+ipc:///run/x"),
        (("--scheduler-url", "embedded"), "embedded"),
    ],
)
def test_addresses(arguments, url):
    assert load(*arguments).config.topic.address.url == url


def test_the_socket_of_an_address():
    def path(url):
        return TopicConfig("global", scheduler_url=url).address.path

    assert path("unix:///run/x.sock?db=2") == Path("/run/x.sock")
    assert path("unix://me@/run/x@y") == Path("/run/x@y")
    assert path("redis://h:1") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scheduler-url", "reddis://h:1"), "did you mean redis"),
        (("--scheduler-url", "http://h:1"), "must be redis://HOST:PORT/DB"),
        (("--scheduler-url", "embeddet"), "did you mean embedded"),
        (("--scheduler-url", "redis://user:pw@h:1"), "must not hold a password"),
        (("--scheduler-url", "unix://me:pw@/run/x"), "must not hold a password"),
        (("--scheduler-url", "unix://run/x.sock"), "absolute path"),
        (("--scheduler-url", "unix:///" + "x" * 200), "more than 100 bytes"),
        (("--scheduler-url", "zmq+tcp://h"), "needs a host and a port"),
        (("--scheduler-url", "redis://h:99999"), "needs a host and a port"),
        (("--scheduler-url", "redis://h:1/abc"), "number of a database"),
        (("--scheduler-topic", "a}b"), "letters, digits and"),
        (("--scheduler-topic", ""), "letters, digits and"),
        (("--scheduler-curve-keys", "k"), "for a ZMQ broker"),
        (("--scheduler-port", "0"), "an integer from 1 to 65535"),
        (("--scheduler-lease", "0.5"), "from 1 to 3600"),
        (("--scheduler-name", "globl"), "one of local, global, splitwise"),
        (("--scheduler-nam", "global"), "did you mean --scheduler-name"),
        (("--splitwise-role", "both"), "one of mixed, prefill, decode, frontend"),
        (("--kv-transfer-listen", "ipc:///x"), "must be tcp://ADDRESS:PORT"),
        (("--kv-transfer-listen", "tcp://127.0.0.1"), "must be tcp://ADDRESS:PORT with a port"),
        (("--kv-transfer-listen", "tcp://127.0.0.1:70000"), "a port from 1 to 65535, or \\*"),
        (("--kv-transfer-listen", "tcp://0.0.0.0:5555"), "it needs kv_transfer_curve_keys"),
        (("--kv-transfer-listen", "tcp://[::]:*"), "kv_transfer_listen.*kv_transfer_curve_keys"),
        (("--kv-transfer-transports", ""), "at least one"),
        (("--kv-transfer-transports", "[]"), "at least one"),
        (("--kv-transfer-transports", "[shm, rdma]"), "no transport 'rdma', only shm, zmq-tcp"),
        (("--kv-transfer-transports", "shm,zmq_tcp"), "'zmq_tcp'.*; did you mean zmq-tcp?"),
        (("--kv-transfer-transports", "shm", "shm"), "each one once"),
        (("--kv-transfer-lease", "0.5"), "from 1 to 3600"),
    ],
)
def test_mistakes(arguments, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(*arguments)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "texts", [["shm", "zmq-tcp"], ["shm,zmq-tcp"], ["[shm, 'zmq-tcp']"], ["[shm,", "zmq-tcp]"]]
)
def test_lists_of_a_command_line(texts):
    config = load("--kv-transfer-transports", *texts).config
    assert config.handoff.kv_transfer_transports == ("shm", "zmq-tcp")
    # Brackets of a key are a part of it.
    assert load("--api-key", "[a]").config.server.api_key == ("[a]",)


def test_transports_are_those_that_can_be_made(monkeypatch):
    assert set(OWN_TRANSPORTS) <= set(transport_names())
    monkeypatch.setattr(handoff, "plugin_names", {KV_TRANSPORTS: ("mine",)}.get)
    config = load("--kv-transfer-transports", "[mine, shm]").config
    assert config.handoff.kv_transfer_transports == ("mine", "shm")
    with pytest.raises(ConfigError, match="only shm, zmq-tcp, mine; did you mean mine?"):
        load("--kv-transfer-transports", "mind")


def test_addresses_of_the_handoff():
    for listen in ("tcp://localhost:5", "tcp://127.0.0.2:*", "tcp://[::1]:*"):
        assert load("--kv-transfer-listen", listen).config.handoff.kv_transfer_listen == listen
    arguments = ("--kv-transfer-listen", "tcp://0.0.0.0:5", "--kv-transfer-curve-keys", "k")
    config = load("--splitwise-role", "prefill", *arguments).config
    # They are read before the model is loaded.
    with pytest.raises(ConfigError, match="kv_transfer_curve_keys: cannot read the key k/member"):
        check_handoff_keys(config)


def test_a_mistake_of_the_handoff_has_a_place(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("model: m\nkv_transfer_transports: [shm, rdma]\n")
    with pytest.raises(ConfigError, match=r"kv_transfer_transports: \S*x\.yaml:2"):
        load_config(["--config", str(path)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--splitwise-role", "frontend"], "frontend needs scheduler_name: splitwise"),
        (["--splitwise-role", "prefill"], "prefill needs scheduler_name: splitwise"),
        (["--splitwise-role", "decode"], "decode needs scheduler_name: splitwise"),
        (["--scheduler-url", "redis://h:1"], "needs scheduler_name: global"),
    ],
)
def test_what_needs_a_broker(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load_config(["--model", "m", *arguments])


def test_keys_without_effect_are_named():
    (warning,) = load_config(
        ["--model", "m", "--scheduler-topic", "t", "--scheduler-ttl", "9"]
    ).warnings
    assert warning.startswith(
        "scheduler_topic, scheduler_ttl: no effect with scheduler_name: local"
    )
    assert load().warnings == ()


def test_the_password_is_never_shown(monkeypatch):
    monkeypatch.setenv("FD_SCHEDULER_PASSWORD", "hunter2")
    loaded = load()
    assert loaded.config.topic.address.password == "hunter2"
    assert loaded.origins["scheduler_password"] == "environment FD_SCHEDULER_PASSWORD"
    shown = render_config(loaded.config, loaded.origins)
    assert "hunter2" not in shown + repr(loaded.config) + repr(loaded.config.topic.address)
    assert load("--scheduler-password", "other").config.topic.scheduler_password == "other"
