"""Stable models are certified; whatever would cost tokens is caught, and named."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.certificate import (
    Certificate,
    Transcript,
    TranscriptRequest,
    certify,
    is_certified,
    keep,
    recorded,
    warning,
)
from areal_sdk.certificate import replay as transcripts
from areal_sdk.certificate.findings import Severity
from areal_sdk.models import resolve_model
from areal_sdk.types import Message
from tests.gateway.model_dirs import TEMPLATES, make_model_dir
from tests.gateway.real_models import REAL_MODELS, real_model_dir


def failures(certificate: Certificate) -> dict[str, str]:
    return {f.check: f.found for f in certificate.findings if f.level is Severity.FAILED}


@pytest.mark.parametrize("shape", list(TEMPLATES))
def test_a_stable_model_is_certified(tmp_path: Path, shape: str) -> None:
    certificate = certify(make_model_dir(tmp_path, shape))
    assert failures(certificate) == {}
    assert certificate.is_certified


CLIENTS = (
    "anthropic messages",
    "langchain",
    "litellm",
    "openai chat",
    "openai responses",
    "openai-agents",
    "pydantic-ai",
    "smolagents",
)


def test_every_wire_format_and_client_was_recorded() -> None:
    clients = {transcript.client for transcript in recorded()}
    for name in CLIENTS:
        assert any(name in client for client in clients)
    assert all(len(transcript.requests) >= 3 for transcript in recorded())
    assert any(m["role"] == "tool" for t in recorded() for r in t.requests for m in r.messages)


def test_every_transcript_can_be_recorded_again() -> None:
    script = Path(__file__).parents[2] / "scripts" / "clients" / "record.py"
    names = re.findall(r'Recording\("([a-z-]+)"', script.read_text())
    package = Path(transcripts.__file__).with_name("transcripts")
    assert sorted(names) == sorted(path.stem for path in package.glob("*.json"))


Break = Callable[[Path], object]


def template(old: str, new: str, *, count: int = -1) -> Break:
    def change(directory: Path) -> None:
        path = directory / "chat_template.jinja"
        source = path.read_text()
        assert old in source, "the breakage no longer fits the template"
        path.write_text(source.replace(old, new, count))

    return change


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Break:
    def apply(directory: Path) -> None:
        path = directory / "tokenizer.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return apply


def config(name: str, **values: Any) -> Break:
    def change(directory: Path) -> None:
        path = directory / name
        known = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(known | values))

    return change


def several(*changes: Break) -> Break:
    return lambda directory: [change(directory) for change in changes]


def without_token(text: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] != text]

    return change


def folding(*kinds: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["normalizer"] = {
            "type": "Sequence",
            "normalizers": [{"type": kind} for kind in kinds],
        }

    return change


def with_bos_in_front(document: dict[str, Any]) -> None:
    bos = {"id": "<|endoftext|>", "ids": [_id(document, "<|endoftext|>")]}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<|endoftext|>": {**bos, "tokens": ["<|endoftext|>"]}},
    }


def _id(document: dict[str, Any], text: str) -> int:
    return next(int(t["id"]) for t in document["added_tokens"] if t["content"] == text)


ASKS = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
RESULT = "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}"
USER = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
SYSTEM = "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' -}}"
SAID = "{%- if message.content -%}{{- '\\n' + message.content -}}{%- endif -%}"
ARGUMENTS = "{{- call.function.arguments | tojson -}}"

MODEL_BREAKAGES: dict[str, tuple[Break, str]] = {
    # KNOWN_FAILURES 2, 3: separators, headers, ends
    "no header for the next answer": (template(ASKS, ""), "asks for answers"),
    "another header for the next answer": (
        template(ASKS, ASKS.replace("assistant\\n", "assistant:")),
        "asks for answers",
    ),
    "the newline of the header is lost": (
        template(ASKS, ASKS.replace("assistant\\n", "assistant")),
        "asks for answers",
    ),
    "answers do not end": (
        template("{{- '<|im_end|>\\n' -}}\n{%- elif not", "{{- '\\n' -}}\n{%- elif not"),
        "ends turns",
    ),
    "the model stops elsewhere": (
        several(
            config("config.json", eos_token_id=0),
            config("tokenizer_config.json", eos_token="<|endoftext|>"),
        ),
        "ends turns",
    ),
    "the end of a turn is no token": (tokenizer(without_token("<|im_end|>")), "ends turns"),
    "the start of a turn is no token": (tokenizer(without_token("<|im_start|>")), "markup"),
    "two beginnings of text": (
        template("{%- if tools -%}", "{{- bos_token + bos_token -}}{%- if tools -%}", count=1),
        "beginning of text",
    ),
    "a beginning of text in every message": (
        several(
            tokenizer(with_bos_in_front),
            template(
                "{%- for message in messages -%}",
                "{%- for message in messages -%}{{- bos_token -}}",
            ),
        ),
        "beginning of text",
    ),
    "no beginning of text": (tokenizer(with_bos_in_front), "beginning of text"),
    # KNOWN_FAILURES 7, 8: results, texts, injection
    "answers are hidden": (template(SAID, ""), "asks for answers"),
    "only the first result is shown": (
        template(
            RESULT, "{%- if messages[loop.index0 - 1].role != 'tool' -%}" + RESULT + "{%- endif -%}"
        ),
        "shows everything",
    ),
    "long texts are cut": (
        template(USER, USER.replace("message.content", "message.content[:200]")),
        "shows everything",
    ),
    "the system message is ignored": (template(SYSTEM, ""), "shows everything"),
    "special tokens are put together again": (
        template(
            "+ message.content + '<|im_end|>",
            "+ message.content | replace('\\ufdd0', '') + '<|im_end|>",
        ),
        "injection",
    ),
    "the prompt holds the time": (
        template(ASKS, "{{- strftime_now('%H:%M:%S') -}}" + ASKS),
        "clock",
    ),
    "the prompt is drawn by chance": (
        template(ASKS, "{{- range(1000) | random -}}" + ASKS),
        "repeats",
    ),
    # KNOWN_FAILURES 1: what the template writes is not what was sampled
    "arguments lose their names": (
        template(ARGUMENTS, "{{- call.function.arguments.values() | list | tojson -}}"),
        "tool round trip",
    ),
    "calls in a format of its own": (
        template(
            '{{- \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' -}}',
            '{{- \'\\n<tool_call>\\n{"call": "\' + call.function.name + \'", "with": \' -}}',
        ),
        "tool round trip",
    ),
    "late messages are written differently": (
        template(RESULT, RESULT + "{%- if loop.index0 > 8 -%}{{- '!' -}}{%- endif -%}"),
        "drift",
    ),
    "answers are refused after results": (
        template(
            "{%- for message in messages -%}",
            "{%- if messages | length > 2 -%}{{- raise_exception('too long') -}}{%- endif -%}"
            "{%- for message in messages -%}",
        ),
        "template",
    ),
    # the tokenizer
    "letters are folded": (tokenizer(folding("Lowercase")), "text"),
    "accents are lost": (tokenizer(folding("NFD", "StripAccents")), "text"),
    "bytes are not put together": (tokenizer(lambda d: d.update(decoder=None)), "text"),
    "more tokens than embeddings": (config("config.json", vocab_size=300), "vocabulary"),
    "no template": (lambda d: (d / "chat_template.jinja").unlink(), "loads"),
    "a template that is no jinja": (template("{%- endif -%}", ""), "loads"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "loads"),
}


@pytest.mark.parametrize("breakage", MODEL_BREAKAGES.values(), ids=MODEL_BREAKAGES)
def test_a_broken_model_is_caught(tmp_path: Path, breakage: tuple[Break, str]) -> None:
    change, check = breakage
    change(make_model_dir(tmp_path, "qwen2.5"))
    certificate = certify(tmp_path)
    assert check in failures(certificate)
    assert not certificate.is_certified
    assert all(f.cure for f in certificate.findings if f.level is Severity.FAILED)


FORGETS = (
    "{%- for message in messages -%}",
    "{%- for message in messages if message.role != 'assistant' or message == messages[-1] -%}",
)


def test_a_template_that_forgets_earlier_answers_is_told_so(tmp_path: Path) -> None:
    template(*FORGETS)(make_model_dir(tmp_path, "smollm2"))
    found = failures(certify(tmp_path))
    assert "missing from the prompt: earlier answers" in found["shows everything"]
    assert (
        found["template"] == "request 2: earlier answers are missing from the prompt, or rewritten"
    )
    assert "MARK" not in str(found)


Rewrite = Callable[[tuple[Message, ...], int], tuple[Message, ...]]


def _each(role: str, change: Callable[[Message], Message]) -> Rewrite:
    return lambda messages, _: tuple(change(m) if m["role"] == role else m for m in messages)


def _with_arguments(arguments: str) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        calls = [
            {**call, "function": {**call["function"], "arguments": arguments}}
            for call in message.get("tool_calls") or ()
        ]
        return {**message, "tool_calls": calls} if calls else message

    return change


CLIENT_BREAKAGES: dict[str, tuple[Rewrite, str]] = {
    "arguments are changed": (_each("assistant", _with_arguments('{"a": 0}')), "args_changed"),
    "arguments are lost": (_each("assistant", _with_arguments("{}")), "args_changed"),
    "calls are dropped": (
        _each("assistant", lambda m: {"role": "assistant", "content": m["content"]}),
        "edited",
    ),
    "the system message tells the time": (
        lambda messages, n: ({"role": "system", "content": f"It is {n}:00."}, *messages),
        "system_changed",
    ),
    "results are shortened later": (
        lambda messages, _: (
            *({**m, "content": "..."} if m["role"] == "tool" else m for m in messages[:-2]),
            *messages[-2:],
        ),
        "edited",
    ),
    "the past is summarised": (
        lambda messages, n: messages if n < 4 else ({"role": "user", "content": "So far: 2."},),
        "subagent",
    ),
    "answers are put in capitals": (
        _each("assistant", lambda m: {**m, "content": (m["content"] or "x").upper()}),
        "edited",
    ),
    "requests are sent twice": (lambda messages, n: messages[:1], "resampled"),
    "thoughts are cut out": (
        _each("assistant", lambda m: {**m, "content": (m["content"] or "").split("</think>")[-1]}),
        "thinking_dropped",
    ),
}


@pytest.mark.parametrize("breakage", CLIENT_BREAKAGES.values(), ids=CLIENT_BREAKAGES)
def test_a_client_that_changes_history_is_caught_with_the_reason(
    tmp_path: Path, breakage: tuple[Rewrite, str]
) -> None:
    rewrite, reason = breakage
    faithful = next(t for t in recorded() if t.client == "openai-agents chat")
    if reason == "thinking_dropped":
        faithful = thinking_aloud(faithful)
    requests = tuple(
        replace(request, messages=rewrite(request.messages, number))
        for number, request in enumerate(faithful.requests)
    )
    model = make_model_dir(tmp_path, "qwen2.5")
    assert certify(model, transcripts=[faithful]).is_certified
    found = failures(certify(model, transcripts=[Transcript("broken", requests)]))
    assert found["one sequence"].endswith(reason)


def thinking_aloud(transcript: Transcript) -> Transcript:
    """The model's thoughts are part of its text, as with templates that know nothing of them."""

    def aloud(message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        return {**message, "content": f"<think>\nhm\n</think>\n\n{message['content'] or ''}"}

    requests = (
        TranscriptRequest(tuple(map(aloud, r.messages)), r.tools, aloud(r.answer))
        for r in transcript.requests
    )
    return Transcript("aloud", tuple(requests))


def test_a_certificate_is_found_again_until_the_model_changes(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model", "qwen2.5")
    cache = tmp_path / "cache"
    assert is_certified(model, cache_dir=cache) is None
    keep(certify(model, transcripts=[]), cache_dir=cache)
    assert is_certified(model, cache_dir=cache) is True
    template(ASKS, "")(model)
    assert is_certified(model, cache_dir=cache) is None
    keep(certify(model, transcripts=[]), cache_dir=cache)
    assert is_certified(model, cache_dir=cache) is False


def test_a_model_without_a_certificate_is_warned_of_in_one_line(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model", "qwen2.5")
    cache = tmp_path / "cache"
    assert "no token-exactness certificate" in str(warning(model, cache_dir=cache))
    keep(certify(model, transcripts=[]), cache_dir=cache)
    assert warning(model, cache_dir=cache) is None
    template(ASKS, "")(model)
    keep(certify(model, transcripts=[]), cache_dir=cache)
    line = str(warning(model, cache_dir=cache))
    assert "is not token-exact" in line
    assert f"areal-sdk doctor model {model}" in line
    assert "\n" not in line


@pytest.mark.parametrize("name", ["tiny", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_the_built_in_models_need_no_certificate(tmp_path: Path, name: str) -> None:
    model = resolve_model(name)
    assert failures(certify(model)) == {}
    assert warning(model, cache_dir=tmp_path) is None, "its files changed: update store.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_MODELS)
def test_a_real_model_is_certified(name: str) -> None:
    assert failures(certify(real_model_dir(name))) == {}
