# SPDX-License-Identifier: Apache-2.0
"""The official Python client against the server: both endpoints, whole and streaming."""

import asyncio

import openai
import pytest

from tests.entrypoints.conftest import MODEL

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(client, **fields):
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)


def complete(client, prompt="hi", **fields):
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


def test_chat(server, client):
    server.engine.script.reply = server.engine.spell("hello world")
    answer = chat(client, temperature=0, max_completion_tokens=50)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "hello world")
    assert choice.finish_reason == "stop"
    prompt = server.tokenizer.encode("<|start|>user\nhi<|end|><|start|>assistant\n")
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.total_tokens == len(prompt) + answer.usage.completion_tokens
    assert server.engine.submitted[0].prompt == tuple(prompt)


def test_chat_stream(server, client):
    server.engine.script.reply = server.engine.spell("hello world")
    server.engine.script.step_sizes = (2,)
    with chat(client, stream=True, stream_options={"include_usage": True}) as chunks:
        *chunks, last = list(chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens > 0
    assert last.usage.speculative["num_drafted_tokens"] > 0


def test_chat_with_several_choices(server, client):
    server.engine.script.reply = lambda submit, choice: list(f"choice {choice}".encode())
    answer = chat(client, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [
        "choice 0",
        "choice 1",
        "choice 2",
    ]
    texts = dict.fromkeys(range(3), "")
    for chunk in chat(client, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == ["choice 0", "choice 1", "choice 2"]
    assert answer.usage.completion_tokens == 3 * 9
    assert len(server.engine.submitted) == 2, "one command for all choices"


def test_chat_logprobs(server, client):
    server.engine.script.reply = server.engine.spell("a\N{GRINNING FACE}")
    content = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [entry.token for entry in content] == [
        "a",
        "\\xf0",
        "\\x9f",
        "\\x98",
        "\\x80",
        "<|end|>",
    ]
    assert [entry.bytes for entry in content[:2]] == [[0x61], [0xF0]]
    assert content[0].logprob == pytest.approx(-0.97)
    for entry in content:
        assert [top.logprob for top in entry.top_logprobs] == [-0.01, -0.02]
    assert chat(client).choices[0].logprobs is None
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_chat_logprobs_stream(server, client):
    server.engine.script.reply = server.engine.spell("a\N{GRINNING FACE}bc")
    server.engine.script.step_sizes = (3,)
    whole = chat(client, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    streamed = []
    for chunk in chat(client, logprobs=True, top_logprobs=1, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == whole


def test_completion_forms_of_prompts(server, client):
    one = complete(client, "hi", max_tokens=5)
    assert one.object == "text_completion"
    assert one.choices[0].text == "ok"
    complete(client, [104, 105])
    several = complete(client, ["hi", "hello"], n=2)
    ids = complete(client, [[1, 2], [3]])
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [choice.index for choice in ids.choices] == [0, 1]
    prompts = [submit.prompt for submit in server.engine.submitted]
    hello = tuple(server.tokenizer.encode("hello"))
    assert prompts == [(104, 105), (104, 105), (104, 105), hello, (1, 2), (3,)]
    assert several.usage.prompt_tokens == 2 + len(hello), (
        "once for each prompt, not for each choice"
    )


def test_completion_stream_of_several_prompts(server, client):
    server.engine.script.reply = lambda submit, choice: [*submit.prompt, 48 + choice]
    texts = dict.fromkeys(range(4), "")
    for chunk in complete(client, ["ab", "cd"], n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == ["ab0", "ab1", "cd0", "cd1"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("prompt", "text"), [("h\N{SNOWMAN}", "h\N{SNOWMAN}"), ([104, 33], "h!")])
def test_echo(server, client, prompt, text, streams):
    answer = complete(client, prompt, echo=True, stream=streams)
    chunks = list(answer) if streams else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == text + "ok"


def test_completion_logprobs(server, client):
    server.engine.script.reply = server.engine.spell("a\N{GRINNING FACE}b")
    logprobs = complete(client, logprobs=2).choices[0].logprobs
    assert logprobs.tokens[:3] == ["a", "bytes:\\xf0", "bytes:\\x9f"]
    assert logprobs.text_offset == [0, 1, 1, 1, 1, 2, 3]
    assert logprobs.token_logprobs[0] == pytest.approx(-0.97)
    assert logprobs.top_logprobs[0] == pytest.approx({"\x01": -0.01, "\x02": -0.02, "a": -0.97})
    assert complete(client).choices[0].logprobs is None
    assert list(complete(client, logprobs=0).choices[0].logprobs.top_logprobs[0]) == ["a"]


@pytest.mark.parametrize("streams", [False, True])
def test_prompt_logprobs_by_echo(server, client, streams):
    answer = complete(client, [97, 98], echo=True, logprobs=0, stream=streams)
    logprobs = [chunk.choices[0].logprobs for chunk in (list(answer) if streams else [answer])]
    tokens = [token for part in logprobs for token in part.tokens]
    values = [value for part in logprobs for value in part.token_logprobs]
    offsets = [offset for part in logprobs for offset in part.text_offset]
    assert tokens == ["a", "b", "o", "k", "<|end|>"]
    assert values[0] is None
    assert values[1] == pytest.approx(-0.98)
    assert offsets == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("streams", [False, True])
def test_the_prompt_alone(server, client, streams):
    answer = complete(client, [97, 98], echo=True, logprobs=0, max_tokens=0, stream=streams)
    chunks = list(answer) if streams else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ab"
    assert [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens] == ["a", "b"]
    assert chunks[-1].choices[0].finish_reason == "length"
    if not streams:
        assert answer.usage.completion_tokens == 0


def test_token_ids(server, client):
    extra = {"extra_body": {"return_token_ids": True}}
    eos_id = server.tokenizer.eos_ids[0]
    completion = complete(client, [97], **extra).choices[0]
    assert completion.token_ids == [*b"ok", eos_id]
    assert completion.prompt_token_ids == [97]
    answer = chat(client, **extra)
    assert answer.choices[0].token_ids == [*b"ok", eos_id]
    assert tuple(answer.prompt_token_ids) == server.engine.submitted[-1].prompt
    chunks = list(chat(client, stream=True, **extra))
    assert tuple(chunks[0].prompt_token_ids) == server.engine.submitted[-1].prompt
    assert sum((chunk.choices[0].token_ids for chunk in chunks), []) == [*b"ok", eos_id]


def test_prompt_token_ids(server, client):
    client.chat.completions.create(
        model=MODEL, messages=[], extra_body={"prompt_token_ids": [1, 2, 3]}
    )
    assert server.engine.submitted[-1].prompt == (1, 2, 3)


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL, "alias/name"]
    assert client.models.retrieve("alias/name").id == "alias/name"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="other", prompt="a")
    assert caught.value.param == "model"
    assert "tiny, alias/name" in caught.value.message


def test_error_in_a_stream_is_raised(server, client):
    server.engine.script.reply = server.engine.spell("abcdef")
    server.engine.script.error, server.engine.script.error_after = "the cache is full", 3
    with pytest.raises(openai.APIError, match="the cache is full"):
        list(complete(client, stream=True))


def test_many_at_once(server):
    """Concurrent streams keep their tokens apart."""
    server.engine.script.reply = lambda submit, choice: [*submit.prompt] * 3
    server.engine.script.step_sizes = (2, 3)

    async def ask(client, number):
        prompt = f"request {number}"
        text = ""
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, stream=True, max_tokens=100
        )
        async for chunk in stream:
            text += chunk.choices[0].text
        return text == prompt * 3

    async def ask_all():
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(40)))

    assert all(asyncio.run(ask_all()))
