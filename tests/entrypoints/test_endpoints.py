# SPDX-License-Identifier: Apache-2.0
"""The small endpoints, the metrics, the API's description, and the engine's death."""

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fdspec.entrypoints.openai.frontend import FrontendOptions
from fdspec.version import __version__
from tests.entrypoints.conftest import MODEL, READY, Server
from tests.entrypoints.sse import read_events

BODY = {"prompt": "hi"}


def scrape(http):
    """Values of all samples, by name and labels."""
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_state(http):
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ping").status_code == http.post("/ping").status_code == 200
    assert http.get("/version").json() == {"version": __version__}
    assert http.get("/load").json() == {"server_load": 0}
    for path in ("/health", "/ping", "/version", "/load", "/metrics", "/v1/models"):
        response = http.head(path)
        assert (response.status_code, response.content) == (200, b""), path


def test_models(http):
    listing = http.get("/v1/models").json()
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == [MODEL, "alias/name"]
    assert listing["data"][0]["max_model_len"] == READY.max_model_len
    assert http.get("/v1/models/alias/name").json()["id"] == "alias/name"


def test_served_name_of_the_answer(http):
    assert http.post("/v1/completions", json=BODY).json()["model"] == MODEL
    answer = http.post("/v1/completions", json={**BODY, "model": "alias/name"}).json()
    assert answer["model"] == "alias/name"


def test_tokenize(server, http):
    answer = http.post("/tokenize", json={"prompt": "hello", "return_token_strs": True}).json()
    assert answer["tokens"] == server.tokenizer.encode("hello")
    assert answer["token_strs"] == ["hell", "o"]
    assert answer["count"] == 2
    assert answer["max_model_len"] == READY.max_model_len
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    answer = http.post("/tokenize", json=chat).json()
    assert answer["tokens"] == server.tokenizer.encode("<|start|>user\nhi<|end|>")
    assert answer["token_strs"] is None


@pytest.mark.parametrize("text", ["hello world", "", "<|start|>x\N{GRINNING FACE}"])
def test_detokenize(http, text):
    tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


def test_long_prompts_are_tokenised_alike(server, http):
    text = "hello wor" * 3000
    tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert tokens == server.tokenizer.encode(text)


def test_description(http):
    document = http.get("/openapi.json").json()
    for path, schema in (
        ("/v1/chat/completions", "ChatCompletionRequest"),
        ("/v1/completions", "CompletionRequest"),
        ("/tokenize", "TokenizeRequest"),
        ("/detokenize", "DetokenizeRequest"),
    ):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert body["schema"]["$ref"] == f"#/components/schemas/{schema}"
        assert document["components"]["schemas"][schema]["properties"]
    operations = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(operations) == len(set(operations))


@pytest.mark.parametrize("prefix", ["fdspec", "fastdeploy"])
def test_metrics(prefix):
    server = Server(FrontendOptions(model_names=(MODEL,), metrics_prefix=prefix))
    server.start()
    try:
        with server.http() as http:
            before = scrape(http)
            assert before[f"{prefix}:requests_number_total",] == 0
            server.engine.script.reply = server.engine.spell("abcdefg")
            server.engine.script.step_sizes = (3,)
            server.engine.script.num_cached = 1
            http.post("/v1/completions", json={**BODY, "max_tokens": 7})
            http.post("/v1/completions", json={**BODY, "speculative": {"enabled": False}})
            server.engine.script.error = "no"
            http.post("/v1/completions", json=BODY)
            values = scrape(http)
    finally:
        server.stop()
    reasons = {
        reason: values[f"{prefix}:request_success_total", ("finished_reason", reason)]
        for reason in ("stop", "length", "abort", "error")
    }
    assert reasons == {"stop": 1, "length": 1, "abort": 0, "error": 1}
    expected = {
        "requests_number_total": 3,
        "prompt_tokens_total": 6,
        "generation_tokens_total": 7 + 8,
        "prefix_cache_token_num_total": 2,
        "spec_decode_num_drafts_total": 2,
        "spec_decode_num_draft_tokens_total": 8,
        "spec_decode_num_accepted_tokens_total": 4,
        "spec_decode_num_emitted_tokens_total": 6,
        "spec_decode_draft_acceptance_rate": 0.5,
        "max_batch_size": READY.max_num_seqs,
        "available_batch_size": READY.max_num_seqs,
        "num_requests_running": 0,
        "max_gpu_block_num": READY.num_blocks,
        "available_gpu_block_num": READY.num_blocks,
        "gpu_cache_usage_perc": 0,
        "available_gpu_resource": 1,
        "time_to_first_token_seconds_count": 2,
        "time_per_output_token_seconds_count": 2 + 3,
        "e2e_request_latency_seconds_count": 2,
        "request_prompt_tokens_count": 3,
        "request_generation_tokens_sum": 15,
        "request_params_max_tokens_sum": 7 + 16 + 16,
    }
    assert {name: values[f"{prefix}:{name}",] for name in expected} == expected
    for position, (drafted, accepted) in enumerate([(2, 2), (2, 2), (2, 0), (2, 0)]):
        label = ("position", str(position))
        name = f"{prefix}:spec_decode_num"
        assert values[f"{name}_draft_tokens_per_pos_total", label] == drafted
        assert values[f"{name}_accepted_tokens_per_pos_total", label] == accepted
    source = ("source", "fake")
    assert values[f"{name}_draft_tokens_per_source_total", source] == 8
    assert values[f"{name}_accepted_tokens_per_source_total", source] == 4
    (info,) = (labels for name, *labels in values if name == f"{prefix}:cache_config_info")
    assert dict(info)["block_size"] == str(READY.block_size)
    assert dict(info)["kv_cache_dtype"] == "bfloat16"


def test_usage_with_cached_tokens(server, http):
    server.engine.script.num_cached = 2
    usage = http.post("/v1/completions", json=BODY).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


def test_the_salt_goes_to_the_engine(server, http):
    http.post("/v1/completions", json={**BODY, "cache_salt": "tenant"})
    assert server.engine.submitted[-1].cache_salt == "tenant"


def test_usage_of_predicted_tokens(server, http):
    prediction = {"type": "content", "content": "hello"}
    answer = http.post("/v1/completions", json={**BODY, "prediction": prediction}).json()
    assert answer["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }, "the fake engine drafts from another source"
    assert (
        "completion_tokens_details" not in http.post("/v1/completions", json=BODY).json()["usage"]
    )


def test_no_speculative_usage_without_speculation():
    plain = Server(
        FrontendOptions(model_names=(MODEL,)),
        type(READY)(300, 512, 64, 16, 8),
    )
    plain.start()
    try:
        with plain.http() as http:
            fields = {**BODY, "prediction": {"content": "hello"}}
            answer = http.post("/v1/completions", json=fields).json()
    finally:
        plain.stop()
    assert "speculative" not in answer["usage"]
    assert "speculate_metrics" not in answer["choices"][0]


def test_death_of_the_engine():
    """Running requests end with an error of the right form; later ones too; health says so."""
    server = Server(FrontendOptions(model_names=(MODEL,)))
    server.start()
    try:
        server.engine.script.reply = lambda submit, choice: [97] * 400
        server.engine.script.step_s = 0.01
        whole: list[int] = []

        def ask():
            with server.http() as own:
                answer = own.post("/v1/completions", json={**BODY, "max_tokens": 400})
                assert "disk is on fire" in answer.json()["error"]["message"]
                whole.append(answer.status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        with server.http() as http:
            body = {**BODY, "max_tokens": 400, "stream": True}
            with http.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()
                first = next(lines)
                server.engine.die("the disk is on fire")
                *_, error, done = read_events([first, *lines])
            thread.join()
            assert "disk is on fire" in error["error"]["message"]
            assert done == "[DONE]"
            assert whole == [500]
            health = http.get("/health")
            assert health.status_code == 503
            assert "disk is on fire" in health.json()["error"]["message"]
            late = http.post("/v1/completions", json=BODY)
            assert late.status_code == 500
            assert late.json()["error"]["code"] == "engine_dead"
            assert http.get("/metrics").status_code == 200
    finally:
        server.stop()
