# SPDX-License-Identifier: Apache-2.0
"""LLM: offline generation in this process, without a server.

Checks and tokenises prompts, runs the engine's steps, and collects answers. The engine is the one
that a server runs, so that both give the same tokens.
"""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fdspec.config import config_from_options
from fdspec.core import (
    Abort,
    FdspecError,
    FinishReason,
    InvalidParameter,
    SamplingParams,
    SequenceId,
    Submit,
    TokenEvent,
)
from fdspec.engine.build import build_engine, with_local_model
from fdspec.entrypoints.offline_arguments import (
    Messages,
    Prompt,
    conversation_list,
    params_list,
    prompt_list,
    token_ids,
)
from fdspec.entrypoints.outputs import RequestOutput, completion_output
from fdspec.entrypoints.template_file import read_chat_template
from fdspec.scheduler.topic import InProcessTopic
from fdspec.tokenizer import load_tokenizer
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_SEED_BITS = 63


class LLM:
    """A model that answers lists of prompts.

        llm = LLM(
            model="models/SmolLM2-135M-Instruct.Q4_1.gguf",
            speculative_config={"method": "ngram", "num_speculative_tokens": 5},
        )
        outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=50))
        print(outputs[0].outputs[0].text)

    Not safe to use from several threads at once. `close` it, or use it in a `with` statement, to
    free its memory before the process ends.

    Attributes:
        model: path of the model on this machine.
        tokenizer: its tokenizer.
        max_model_len: most tokens of a sequence, prompt and output together.
        num_threads: CPU threads that compute.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: str | Path | None = None,
        **options: object,
    ) -> None:
        """Load a model.

        Args:
            model: folder, file or hub id; may also come from the configuration file.
            config: YAML file to start from.
            options: engine keys as in a YAML file, such as `max_model_len=2048` or
                `speculative_config={...}`; they win over the file.

        Raises:
            ConfigError: a key or value is wrong, or does not suit the model or the machine.
            CheckpointError: the model's files cannot be used.
        """
        if model is not None:
            options = {"model": str(model), **options}
        loaded = config_from_options(options, None if config is None else str(config))
        for warning in loaded.warnings:
            logger.warning(warning)
        settings = with_local_model(loaded.config)
        self.tokenizer = load_tokenizer(
            settings.model.tokenizer or settings.model.model,
            read_chat_template(settings.model.chat_template),
        )
        self._topic = InProcessTopic()
        built = build_engine(settings, self._topic)
        self._engine = built.engine
        self._close = built.close
        self._is_closed = False
        self._ready = built.ready
        self._max_logprobs = settings.model.max_logprobs
        self._seeds = (
            random.Random(settings.model.seed) if settings.model.seed is not None else None
        )
        self.model = settings.model.model
        self.max_model_len = built.ready.max_model_len
        self.num_threads = int(dict(built.ready.details)["num_threads"])

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue prompts.

        Args:
            prompts: texts, or lists of token ids; a single one counts as a list of one.
            sampling_params: for all prompts, or one for each; default: SamplingParams().
            use_tqdm: show a progress bar on standard error.

        Returns:
            One output for each prompt, in order.

        Raises:
            InvalidParameter: a prompt or parameter is wrong; nothing has been generated.
        """
        entries = prompt_list(prompts)
        all_params = params_list(sampling_params, len(entries))
        submits = []
        for index, (prompt, params) in enumerate(zip(entries, all_params, strict=True)):
            name = f"prompts[{index}]"
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            submits.append(self._submit(name, ids, params))
        texts = [prompt if isinstance(prompt, str) else None for prompt in entries]
        return self._run(submits, texts, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations.

        Args:
            messages: conversations; a single one counts as a list of one.
            sampling_params: for all conversations, or one for each; default: SamplingParams().
            use_tqdm: show a progress bar on standard error.
            add_generation_prompt: let the assistant speak next.
            chat_template_kwargs: further variables of the model's chat template.

        Returns:
            One output for each conversation, in order.

        Raises:
            InvalidParameter: a conversation or parameter is wrong; nothing has been generated.
        """
        conversations = conversation_list(messages)
        all_params = params_list(sampling_params, len(conversations))
        submits, texts = [], []
        for index, (conversation, params) in enumerate(zip(conversations, all_params, strict=True)):
            text = self.tokenizer.apply_chat_template(
                conversation, add_generation_prompt, **(chat_template_kwargs or {})
            )
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            submits.append(self._submit(f"messages[{index}]", ids, params))
            texts.append(text)
        return self._run(submits, texts, use_tqdm)

    def clear_cache(self) -> int:
        """Forget what earlier prompts left in the prefix cache; returns how many blocks."""
        self._check_open()
        return self._engine.scheduler.forget_cached()

    def close(self) -> None:
        """Give the KV cache's memory back; the LLM answers nothing any more. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FdspecError("this LLM has been closed; make a new one")

    def _submit(self, name: str, ids: Sequence[int], params: SamplingParams) -> Submit:
        """A command with everything resolved, or InvalidParameter naming the prompt."""
        self._check_open()
        vocab_size = self._ready.vocab_size
        params.validate(vocab_size=vocab_size, max_logprobs=self._max_logprobs)
        methods = self._ready.speculative_methods
        if params.draft_method not in (None, *methods):
            raise InvalidParameter(
                "draft_method",
                f"draft_method must be None or one of {', '.join(methods) or 'none'}, got "
                f"{params.draft_method!r}",
            )
        prompt = token_ids(name, ids, vocab_size)
        # The last output token is never an input, so it needs no slot in the KV cache.
        num_slots = self._ready.num_blocks * self._ready.block_size
        most = min(self.max_model_len, num_slots + 1)
        left = most - len(prompt)
        max_tokens = left if params.max_tokens is None else params.max_tokens
        if left < 1 or max_tokens > left:
            raise InvalidParameter(
                name,
                f"{name}: {len(prompt)} prompt tokens and {max(max_tokens, 1)} output tokens do "
                f"not fit into {most} tokens (max_model_len {self.max_model_len}, KV cache "
                f"{num_slots} tokens)",
            )
        seed = params.seed
        if seed is None:
            bits = secrets.randbits if self._seeds is None else self._seeds.getrandbits
            seed = bits(_SEED_BITS)
        resolved = replace(params, max_tokens=max_tokens, seed=seed)
        return Submit(uuid.uuid4().hex, prompt, resolved)

    def _run(
        self, submits: Sequence[Submit], texts: Sequence[str | None], use_tqdm: bool
    ) -> list[RequestOutput]:
        events: dict[SequenceId, list[TokenEvent]] = {
            (submit.request_id, choice): []
            for submit in submits
            for choice in range(submit.params.n)
        }
        unfinished = set(events)
        for submit in submits:
            self._topic.send(submit)
        try:
            with tqdm(total=len(events), desc="Answers", disable=not use_tqdm) as bar:
                num_tokens = 0
                while unfinished:
                    for event in self._engine.step():
                        key = event.request_id, event.choice
                        events[key].append(event)
                        num_tokens += len(event.tokens)
                        if event.finish is not None:
                            self._check_finish(event)
                            unfinished.discard(key)
                            bar.set_postfix_str(f"{num_tokens} tokens", refresh=False)
                            bar.update()
        finally:
            # After Ctrl-C, say: what is left must not go on in the next call.
            for request_id in {request_id for request_id, _ in unfinished}:
                self._topic.send(Abort(request_id))
            if unfinished:
                self._engine.step()
            self._topic.receive()
        return [
            self._output(submit, text, events) for submit, text in zip(submits, texts, strict=True)
        ]

    def _check_finish(self, event: TokenEvent) -> None:
        if event.finish in (FinishReason.ERROR, FinishReason.ABORT):
            raise FdspecError(event.error or "a request was aborted")

    def _output(
        self, submit: Submit, text: str | None, events: Mapping[SequenceId, list[TokenEvent]]
    ) -> RequestOutput:
        choices = [events[submit.request_id, choice] for choice in range(submit.params.n)]
        return RequestOutput(
            text,
            submit.prompt,
            choices[0][0].prompt_logprobs,
            tuple(completion_output(c, submit.params, self.tokenizer) for c in choices),
        )
