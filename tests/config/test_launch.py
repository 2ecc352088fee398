# SPDX-License-Identifier: Apache-2.0
"""Plans of launches: which servers a file means, and what is said of mistakes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fdspec.config import HandoffConfig
from fdspec.config.command_line import read_command_line
from fdspec.config.launch import ServerKeys, SupervisionConfig, load_launch
from fdspec.config.options import options_of
from fdspec.config.processors import show_processors
from fdspec.core import ConfigError

CPUS = sorted(os.sched_getaffinity(0))
TWO_MIXED = f"""\
model: m
port: 8180
max_num_seqs: 4
speculative_config: {{method: ngram, num_speculative_tokens: 3}}
servers:
  worker:
    count: 2
    cpus: [{CPUS[0]}, '{CPUS[0]}-{CPUS[-1]}']
    max_num_seqs: 6
    speculative_config: {{method: suffix}}
  frontend:
    splitwise_role: frontend
supervision: {{restart_delay: 0.5}}
"""


@pytest.fixture
def plan(tmp_path):
    def load(text, flags=""):
        (tmp_path / "x.yaml").write_text(text)
        return load_launch([str(tmp_path / "x.yaml")], read_command_line(flags.split()).settings)

    return load


@pytest.fixture
def mistake(plan):
    def load(text, flags=""):
        with pytest.raises(ConfigError) as caught:
            plan(text, flags)
        return re.sub(r"/\S*/x\.yaml", "x.yaml", str(caught.value))

    return load


def test_servers_of_one_file(plan):
    plan = plan(TWO_MIXED)
    assert [(s.name, s.role, s.is_public) for s in plan.servers] == [
        ("worker-1", "mixed", False),
        ("worker-2", "mixed", False),
        ("frontend", "frontend", True),
    ]
    first, second, frontend = plan.servers
    assert (first.cpus, second.cpus, frontend.cpus) == ({CPUS[0]}, set(CPUS), None)
    assert (first.config.scheduler.max_num_seqs, frontend.config.scheduler.max_num_seqs) == (6, 4)
    assert first.config.speculative.method == "suffix"
    assert frontend.config.speculative.method == "ngram"
    # Only the launch's address is the file's; workers take free ports of loopback.
    places = [(s.config.server.host, s.config.server.port) for s in plan.servers]
    assert places == [("127.0.0.1", 0), ("127.0.0.1", 0), ("127.0.0.1", 8180)]
    assert {s.config.topic.scheduler_url for s in plan.servers} == {"embedded"}
    assert {s.config.topic.scheduler_name for s in plan.servers} == {"global"}
    assert (plan.supervision.restart_delay, plan.supervision.max_failed_starts) == (0.5, 3)
    assert plan.warnings == ()


def test_flags_are_for_all_or_for_one(plan):
    flags = "--port 9 --max-num-seqs 2 --servers.worker.max_num_seqs 3 --servers.worker.count=1"
    flags += f" --servers.worker.cpus {CPUS[0]} --supervision.max_failed_starts 1"
    found = plan(TWO_MIXED, flags)
    assert [s.name for s in found.servers] == ["worker", "frontend"]
    assert [s.config.server.port for s in found.servers] == [0, 9]
    # What is said of one wins over what is said of all in the same place.
    assert [s.config.scheduler.max_num_seqs for s in found.servers] == [3, 2]
    assert found.servers[0].cpus == {CPUS[0]}
    assert found.supervision.max_failed_starts == 1


def test_ports_of_further_servers(plan):
    found = plan("model: m\nservers:\n  mixed: {count: 2, port: 70}\n  frontend: {host: '::1'}\n")
    assert [s.config.server.port for s in found.servers] == [70, 71, 8000]
    assert found.servers[2].config.server.host == "::1"


def test_a_server_alone_needs_no_broker(plan):
    (server,) = plan("model: m\n").servers
    assert (server.name, server.is_public) == ("mixed", True)
    assert not server.config.topic.is_shared


def test_a_broker_elsewhere_is_kept(plan):
    found = plan(TWO_MIXED.replace("port: 8180", "scheduler_host: h"))
    assert {s.config.topic.address.url for s in found.servers} == {"redis://h:6379/0"}
    found = plan(TWO_MIXED, "--scheduler-url unix:///x --scheduler-topic t")
    assert {s.config.topic.address.url for s in found.servers} == {"unix:///x"}


def test_several_files(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.yaml", "b.yaml")]
    for path in paths:
        with open(path, "w", encoding="utf-8") as file:
            file.write("model: m\nserved_model_name: x\nport: 7\nscheduler_topic: t\n")
    found = load_launch(paths, read_command_line(["--port", "8"]).settings)
    assert [(s.name, s.is_public) for s in found.servers] == [
        ("a", False),
        ("b", False),
        ("frontend", True),
    ]
    assert [s.config.server.port for s in found.servers] == [0, 0, 8]
    assert found.servers[2].config.model.served_names == ("x",)
    with open(paths[1], "a", encoding="utf-8") as file:
        file.write("scheduler_ttl: 5\n")
    with pytest.raises(
        ConfigError, match=r"scheduler_ttl differs between a \(default\) and b \(.*"
    ):
        load_launch(paths)
    with open(paths[1], "a", encoding="utf-8") as file:
        file.write("servers: {}\n")
    with pytest.raises(ConfigError, match=r"b\.yaml:6: servers: give a file with"):
        load_launch(paths)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("servers: {}\n", "x.yaml:2: servers: must be a map of servers, such as {prefill: "),
        ("servers: {mixed: 3}\n", "x.yaml:2: servers.mixed: must be a map of the server's keys"),
        (
            "servers: {a: {cuont: 2}}\n",
            "x.yaml:2: servers.a.cuont: unknown key; did you mean count",
        ),
        (
            "servers: {a: {max_num_seq: 2}}\n",
            "x.yaml:2: servers.a.max_num_seq: unknown key; did you",
        ),
        ("servers: {a: {max_num_seqs: x}}\n", "servers.a.max_num_seqs: must be an integer from 1"),
        ("servers: {a: {count: 0}}\n", "servers.a.count: must be an integer from 1 to 256, got 0"),
        ("servers: {a: {cpus: 99999}}\n", "servers.a.cpus: must be processors that this process"),
        ("servers: {a: {cpus: 3-1}}\n", "written as 0-3 or 0,2; got '3-1'"),
        ("servers: {a: {cpus: [0, 0]}}\n", "one entry for each of the 1 servers (count)"),
        ("servers: {a: {splitwise_role: mixd}}\n", "did you mean mixed?"),
        ("servers: {frontend: {}}\n", "frontends compute nothing; add a server of another role"),
        (
            "servers: {a: {}, b: {}}\nscheduler_name: local\n",
            "several servers need global or splitwise",
        ),
        (
            "servers: {a: {}, b: {scheduler_topic: t}}\n",
            "scheduler_topic differs between a (default",
        ),
        (
            "servers:\n  prefill: {}\n  decode:\n    block_size: 32\n",
            "block_size differs between prefill (default) and decode (x.yaml:5): 64 and 32; ",
        ),
        (
            "servers:\n  prefill: {kv_cache_dtype: int8}\n  decode: {}\n",
            "kv_cache_dtype differs between prefill (x.yaml:3) and decode (default): int8 and bf",
        ),
        (
            "servers: {a: {}, b: {max_model_len: 9}}\n",
            "max_model_len differs between a (default) and b (x.yaml:2): null and 9; ",
        ),
        ("servers: {a: {quantization: wint8}, b: {}}\n", "quantization differs between a (x.yaml"),
        (
            "servers:\n  a: {}\n  b:\n"
            "    speculative_config: {method: ngram, verify_strategy: topp}\n",
            "speculative_config.verify_strategy differs between a (default) and b (x.yaml:5): ",
        ),
        (
            "servers: {prefill: {}, decode: {kv_transfer_transports: [shm, rdma]}}\n",
            "no transport 'rdma', only shm, zmq-tcp (servers.decode.kv_transfer_transports: x.yaml",
        ),
        (
            "servers:\n  prefill: {}\n  decoder: {}\n",
            "x.yaml:4: servers.decoder: is no role, so this server would be mixed; did you mean de",
        ),
        ("servers: {a: {}, prefill_fast: {}}\n", "did you mean prefill?"),
        ("servers: {a: {}, Front-end: {}}\n", "did you mean frontend?"),
        ("server:\n  mixed: {}\n", "x.yaml:2: server: unknown key; did you mean servers?"),
        ("servers: {a: {}}\nsupervison: {}\n", "supervison: unknown key; did you mean supervision"),
        ("count: 2\nservers: {a: {}}\n", "x.yaml:2: count: belongs to one server, such as servers"),
        ("supervision: {restart_dela: 1}\n", "supervision.restart_dela: unknown key; did you mean"),
        ("supervision: 3\n", "x.yaml:2: supervision: must be a map, got 3"),
        ("supervision: {max_failed_starts: 0}\n", "must be an integer of at least 1, got 0"),
    ],
)
def test_mistakes(mistake, text, words):
    assert words in mistake("model: m\n" + text)


def test_servers_that_may_differ(plan):
    text = "model: m\nservers:\n  a: {block_size: 16}\n  b: {speculative_config: off}\n"
    text += "  mixer: {max_num_seqs: 4}\n  decode_b: {splitwise_role: mixed}\n"
    text += (
        "  frontend: {max_model_len: 9, quantization: wint8}\nspeculative_config: {method: ngram}\n"
    )
    assert {s.role for s in plan(text).servers} == {"mixed", "frontend"}


def test_mistakes_of_flags(mistake):
    text = "model: m\nservers: {a: {}, b: {}}\n"
    assert "where NAME is one of a, b" in mistake(text, "--servers.c.port 1")
    assert "did you mean --servers.a.port?" in mistake(text, "--servers.a.prt 1")
    words = mistake(text, "--servers.a.speculative-config.metho x")
    assert "did you mean --servers.a.speculative_config.method?" in words
    assert "did you mean --servers.a.port?" in mistake(text, "--server.a.port 1")
    worker = "model: m\nservers: {worker: {}, b: {}}\n"
    assert "did you mean --servers.worker.port?" in mistake(worker, "--servers.workr.port 1")
    assert "must be an integer" in mistake(text, "--max-num-seqs x")


def test_processors_as_people_write_them():
    assert show_processors([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_the_page_names_every_key():
    page = (Path(__file__).parents[2] / "docs/disaggregation.md").read_text(encoding="utf-8")
    for section, part in (("servers.NAME", ServerKeys), ("supervision", SupervisionConfig)):
        for found in options_of(part):
            assert f"| `{section}.{found.path[0]}` |" in page


def test_the_page_names_the_keys_of_the_handoff():
    page = (Path(__file__).parents[2] / "docs/disaggregation.md").read_text(encoding="utf-8")
    for found in options_of(HandoffConfig):
        assert f"`{found.path[0]}`" in page
