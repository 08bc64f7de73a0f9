"""`/v1/completions`: raw text or token ids in, text out; no chat template."""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from areal_sdk.gateway.errors import ApiError, bad_request
from areal_sdk.gateway.sampling.reader import Completed, Delta, Prepared, SampledTokens
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import (
    Fields,
    finish_reason,
    parse_sampling,
    parse_stop,
    require,
    usage,
)
from areal_sdk.gateway.wire.reply import event
from areal_sdk.tool_calls import TextDelta

_DEFAULT_MAX_TOKENS = 16

_MOST_CHOICES = 4096
"""Largest number of choices of one request, all of its prompts together."""

Prompt = str | tuple[int, ...]


class CompletionsReply:
    """Writes the reply to one or several prompts, each with its choices."""

    def __init__(
        self, fields: Fields, session: Session, *, model: str, tokenizer: Tokenizer
    ) -> None:
        require(fields.text("model"), "model")
        num_logprobs = fields.integer("logprobs", least=0, most=20)
        self._echo = fields.flag("echo")
        if self._echo and num_logprobs is not None:
            raise bad_request("echo with logprobs is not supported", param="echo")
        best_of = fields.integer("best_of", least=1, most=128)
        num_choices = fields.integer("n", least=1, most=128) or 1
        if best_of not in (None, num_choices):
            raise bad_request("best_of must equal n: every sample is returned", param="best_of")
        prompts = _parse_prompts(require(fields.get("prompt"), "prompt"), tokenizer)
        if len(prompts) * num_choices > _MOST_CHOICES:
            raise bad_request(
                f"{len(prompts)} prompts with n={num_choices} are more than {_MOST_CHOICES} choices: "
                "send them in several requests",
                param="prompt",
            )
        self.requests: Sequence[ChatRequest] = [
            ChatRequest(
                prompt_text=prompt if isinstance(prompt, str) else None,
                prompt_tokens=None if isinstance(prompt, str) else prompt,
                max_new_tokens=fields.integer("max_tokens", least=1) or _DEFAULT_MAX_TOKENS,
                stop=parse_stop(fields.get("stop")),
                num_choices=num_choices,
                seed=fields.integer("seed", least=-(2**63), most=2**63 - 1),
                sampling=parse_sampling(fields),
                logprobs=num_logprobs is not None,
                num_top_logprobs=num_logprobs or 0,
            )
            for prompt in prompts
        ]
        self.stream = fields.flag("stream")
        self._include_usage = Fields(fields.mapping("stream_options") or {}).flag("include_usage")
        self._return_token_ids = fields.flag("return_token_ids")
        fields.accept("user")
        fields.refuse("suffix", "the policy continues text and does not fill gaps")
        fields.refuse_unknown()
        self._tokenizer = tokenizer
        self.id = session.new_reply_id("cmpl-")
        self._head = {
            "id": self.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._prompts: list[str] = []
        self._choices: Sequence[Prepared] = ()
        self._opened: set[int] = set()
        self._logprobs: dict[int, dict[str, list[Any]]] = {}
        self._offsets: dict[int, int] = {}

    def begin(self, choices: Sequence[Prepared]) -> None:
        self._choices = choices
        if self._echo:
            self._prompts = [self._tokenizer.decode(c.prompt.tokens) for c in choices]

    def observe(self, choice: int, delta: Delta) -> None:
        if isinstance(delta, SampledTokens):
            known = self._logprobs.setdefault(choice, _no_logprobs())
            for name, values in self._token_logprobs(choice, delta).items():
                known[name] += values

    def body(self, completed: Sequence[Completed]) -> dict[str, Any]:
        choices = [
            {
                **self._choice(i, self._prefix(i) + done.turn.text, finish_reason(done)),
                **self._prompt_ids(i),
                **self._output_ids(done),
            }
            for i, done in enumerate(completed)
        ]
        return {**self._head, "choices": choices, "usage": usage(completed)}

    def events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        prefix, self._prompts = self._prefix(choice), self._without(choice)
        shown = {} if choice in self._opened else self._prompt_ids(choice)
        self._opened.add(choice)
        if prefix or shown:
            yield self._chunk({**self._choice(choice, prefix, None), **shown})
        match delta:
            case TextDelta(text):
                yield self._chunk(self._choice(choice, text, None))
            case SampledTokens():
                logprobs = self._token_logprobs(choice, delta)
                yield self._chunk({**self._choice(choice, "", None), "logprobs": logprobs})
            case Completed():
                last = self._choice(choice, "", finish_reason(delta))
                yield self._chunk({**last, **self._output_ids(delta)})
            case _:
                raise AssertionError("token prompts are read without a parser")

    def closing_events(self, completed: Sequence[Completed]) -> Iterator[bytes]:
        if self._include_usage:
            yield event({**self._head, "choices": [], "usage": usage(completed)})
        yield b"data: [DONE]\n\n"

    def error_event(self, error: ApiError) -> bytes:
        return event(error.openai_body())

    def _prompt_ids(self, choice: int) -> dict[str, Any]:
        """The ids of the choice's prompt, where vLLM puts them: a request may have several prompts."""
        if not self._return_token_ids:
            return {}
        return {"prompt_token_ids": self._choices[choice].prompt.tokens}

    def _output_ids(self, done: Completed) -> dict[str, Any]:
        return {"token_ids": done.turn.output_tokens} if self._return_token_ids else {}

    def _prefix(self, choice: int) -> str:
        return self._prompts[choice] if self._prompts else ""

    def _without(self, choice: int) -> list[str]:
        """The prompts, with that of `choice` emptied, because it is echoed only once."""
        return ["" if i == choice else prompt for i, prompt in enumerate(self._prompts)]

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return event({**self._head, "choices": [choice]})

    def _choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        logprobs = self._logprobs.get(index)
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}

    def _token_logprobs(self, choice: int, sampled: SampledTokens) -> dict[str, list[Any]]:
        texts = [self._text(token) for token in sampled.tokens]
        ends = list(accumulate(map(len, texts), initial=self._offsets.get(choice, 0)))
        *offsets, self._offsets[choice] = ends
        tops = [{self._text(t): lp for t, lp in top.items()} for top in sampled.top_logprobs]
        return {
            "tokens": texts,
            "token_logprobs": list(sampled.logprobs),
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._tokenizer.bytes_of(token).decode(errors="replace")


def _no_logprobs() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _parse_prompts(value: Any, tokenizer: Tokenizer) -> list[Prompt]:
    """A string, token ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise bad_request("prompt must be a string, token ids, or a list of these", param="prompt")
    if all(type(item) is int for item in value):
        return [_check_ids(value, tokenizer)]
    return [_parse_one(item, tokenizer) for item in value]


def _parse_one(value: Any, tokenizer: Tokenizer) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return _check_ids(value, tokenizer)
    raise bad_request("prompt must hold strings or lists of token ids", param="prompt")


def _check_ids(ids: list[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    size = tokenizer.vocab_size
    wrong = next((i for i in ids if not 0 <= i < size), None)
    if wrong is not None:
        raise bad_request(f"prompt holds token {wrong}; the vocabulary has {size}", param="prompt")
    return tuple(ids)
