# SPDX-License-Identifier: Apache-2.0
"""Keys of a scheduler topic: addresses, mistakes, and a password that nobody sees."""

from pathlib import Path

import pytest

from fdspec.config import TopicConfig, load_config
from fdspec.config.render import render_config
from fdspec.core import ConfigError


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
        (("--kv-transfer-transports", ""), "at least one"),
        (("--kv-transfer-lease", "0.5"), "from 1 to 3600"),
    ],
)
def test_mistakes(arguments, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(*arguments)
    assert "pw" not in str(caught.value)


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
