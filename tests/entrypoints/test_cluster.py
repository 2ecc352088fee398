# SPDX-License-Identifier: Apache-2.0
"""What people and programs see of a topic: errors, /v1/cluster, metrics, the table."""

from dataclasses import replace

import pytest

from fdspec.core import ConfigError
from fdspec.entrypoints import cluster
from fdspec.entrypoints.openai.errors import as_api_error
from fdspec.entrypoints.openai.metrics import Metrics
from fdspec.scheduler.broker.interface import BrokerUnavailable
from fdspec.scheduler.broker.values import TopicStats, WorkerCard, WorkerState
from fdspec.scheduler.topic import EngineStats, NoWorker, Ready, TopicBusy
from fdspec.scheduler.topic.codec import encode
from fdspec.scheduler.topic.same_model import check_same_model

CARD = WorkerCard("id", name="host:1", num_slots=8, num_blocks=64, num_free_blocks=60)
STATS = TopicStats((3, 1), 2, 4, 5, (WorkerState(CARD, 2),))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TopicBusy("9 requests are waiting"), 429, "too_many_requests"),
        (NoWorker("no worker"), 503, "no_worker"),
        (BrokerUnavailable("redis://secret-host:1: refused"), 503, "broker_unreachable"),
    ],
)
def test_errors_of_the_topic_say_to_come_back(error, status, code):
    answer = as_api_error(error)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["Retry-After"] == "1"
    assert "secret-host" not in answer.message


def test_a_server_with_its_own_engine_is_a_topic_of_one(http, server):
    body = http.get("/v1/cluster").json()
    (worker,) = body["workers"]
    assert (worker["role"], worker["slots"], body["frontends"]) == ("mixed", 8, 1)
    assert body["waiting"] == {"prefill": 0, "decode": 0}
    server.frontend.client.trouble = "the broker is gone"
    try:
        answer = http.get("/health")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "broker_unreachable"
    finally:
        server.frontend.client.trouble = None
    assert http.get("/health").status_code == 200


def test_health_without_the_workers_that_requests_need(http, server):
    """Without an engine of its own a server can do nothing then; with one, it is not to blame."""
    client = server.frontend.client
    client.missing_roles = ("prefill", "decode")
    try:
        answer = http.get("/health")
        assert (answer.status_code, answer.json()) == (
            200,
            {"status": "ok", "missing_roles": ["prefill", "decode"]},
        )
        client.has_engine = False
        answer = http.get("/health")
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert (error["code"], error["message"]) == (
            "no_worker",
            "no prefill and no decode worker is alive on the topic",
        )
    finally:
        client.missing_roles, client.has_engine = (), True


def test_health_while_the_engine_is_silent(http, server):
    client = server.frontend.client
    client.is_engine_silent = True
    try:
        answer = http.get("/health")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_silent")
    finally:
        client.is_engine_silent = False
    assert http.get("/health").status_code == 200


def test_metrics_of_the_handoff():
    metrics = Metrics("fdspec")
    metrics.stats = EngineStats(
        num_offered_total=1,
        num_loaded_total=2,
        num_load_failures_total=3,
        num_loaded_bytes_total=4,
        load_ms_total=5.0,
        num_handoffs_open=6,
    )
    lines = metrics.render().decode().splitlines()
    for line in (
        "fdspec:kv_handoffs_offered_total 1.0",
        "fdspec:kv_handoffs_loaded_total 2.0",
        "fdspec:kv_handoffs_failed_total 3.0",
        "fdspec:kv_handoff_bytes_total 4.0",
        "fdspec:kv_handoff_seconds_total 0.005",
        "fdspec:kv_handoffs_open 6.0",
    ):
        assert line in lines


def test_metrics_of_a_shared_topic():
    metrics = Metrics("fdspec")
    assert b"topic_" not in metrics.render()
    metrics.topic = STATS
    lines = metrics.render().decode().splitlines()
    for line in (
        'fdspec:topic_requests_waiting{queue="prefill"} 3.0',
        'fdspec:topic_requests_waiting{queue="decode"} 1.0',
        'fdspec:topic_workers{role="mixed"} 1.0',
        "fdspec:topic_requests_leased 2.0",
        "fdspec:topic_frontends 4.0",
        "fdspec:topic_dead_letters 5.0",
    ):
        assert line in lines


def test_the_table():
    first, head, row = cluster.render(STATS).splitlines()
    assert first == "requests: 3 prefill, 1 decode waiting, 2 leased, 5 given up; frontends: 4"
    assert head.split() == [*("worker", "role", "leased", "running", "waiting", "slots")] + [
        *("free", "blocks", "blocks")
    ]
    assert row.split() == ["host:1", "mixed", "2", "0", "0", "8", "60", "64"]
    alone = WorkerState(replace(CARD, role="prefill"), 0)
    lines = cluster.render(replace(STATS, workers=(alone,))).splitlines()
    assert lines[-1] == "no decode worker is alive: requests wait"
    empty = TopicStats((0, 0), 0, 0, 0, ())
    assert cluster.render(empty).endswith("frontends: 0\nno worker is alive")


def test_mistakes_at_the_table(capsys):
    assert cluster.main([]) == 2
    assert "usage" in capsys.readouterr().err
    assert cluster.main(["status", "--scheduler-url", "embedded"]) == 2
    assert "address of its own" in capsys.readouterr().err
    assert cluster.main(["status", "--scheduler-url", "unix:///nobody/listens"]) == 1
    assert "unix:///nobody/listens" in capsys.readouterr().err


READY = Ready(100, 64, 8, 16, 4, details=(("quantization", "wint8"), ("num_threads", "1")))


def test_workers_of_one_topic_serve_the_same():
    def card(ready):
        return WorkerCard("w", name="host:7", details=encode(ready))

    same = Ready(100, 64, 99, 32, 16, "ngram", 5, (("quantization", "wint8"),))
    check_same_model(READY, card(same))
    for other, words in [
        (Ready(101, 64, 8, 16, 4, details=READY.details), "vocab_size is 100 here but 101"),
        (Ready(100, 65, 8, 16, 4, details=READY.details), "max_model_len is 64 here but 65"),
        (Ready(100, 64, 8, 16, 4), "quantization is wint8 here but None at the worker host:7"),
    ]:
        with pytest.raises(ConfigError, match=words):
            check_same_model(READY, card(other))
    with pytest.raises(ConfigError, match="cannot be read"):
        check_same_model(READY, WorkerCard("w", details=b"\x00\x01"))


def test_workers_that_hand_over_have_the_same_blocks():
    """A mixed worker beside them may have others."""

    def ready(**details):
        return replace(READY, details=READY.details + tuple(details.items()))

    def card(ready):
        return WorkerCard("w", "decode", "host:7", details=encode(ready))

    mine = ready(kv_block_size="64", kv_num_layers="31")
    check_same_model(mine, card(READY))
    check_same_model(mine, card(mine))
    with pytest.raises(ConfigError, match="block_size is 64 here but 32 at the worker host:7"):
        check_same_model(mine, card(ready(kv_block_size="32", kv_num_layers="31")))
    with pytest.raises(ConfigError, match="num_layers is 31 here but 30"):
        check_same_model(mine, card(ready(kv_block_size="64", kv_num_layers="30")))
