"""The template of an exported model renders tools as the gateway does, token by token."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.gateway.tokens.template import ChatTemplate, store_plain_tools
from areal_sdk.types import Message, Tool
from tests.gateway.model_dirs import CHATML, make_model_dir
from tests.gateway.real_models import real_model_dir
from tests.toolbox.plain_tools import (
    ASKS,
    CONVERSATIONS,
    TOOLS,
    as_text,
    call,
    said,
)

BASES = {
    "chatml": CHATML,
    "begins with a newline": "\n" + CHATML,
    "knows developers": "{# developer #}" + CHATML,
    "thinks": CHATML.replace(
        "message['content']",
        "('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '')"
        " + message['content']",
    ),
    "sets its own messages": """\
{%- set rest = messages %}
{%- if messages[0].role == 'system' %}{%- set messages = messages[1:] %}{{ rest[0].content }}{% endif %}
{%- macro say(m) %}[{{ m.role }} of {{ messages | length }}] {{ m.content | trim }}
{% endmacro %}
{%- for m in messages %}{{ say(m) }}{%- endfor %}
{%- if tools %}{{ raise_exception('no tools') }}{% endif %}
{%- if add_generation_prompt %}[assistant] {% endif %}
""",
}


def exported(directory: Path, base: str) -> tuple[Renderer, Renderer, PreTrainedTokenizerFast]:
    """The renderer that trained, the one of the exported model, and transformers' tokenizer of it."""
    make_model_dir(directory, "smollm2")
    (directory / "chat_template.jinja").write_text(base)
    trained = Renderer.load(directory)
    store_plain_tools(directory)
    return trained, Renderer.load(directory), PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.fixture(scope="module", params=list(BASES.values()), ids=list(BASES))
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Renderer, Renderer, PreTrainedTokenizerFast]:
    return exported(tmp_path_factory.mktemp("plain") / "model", request.param)


def ids_of(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], tools: Sequence[Tool]
) -> tuple[int, ...]:
    ids = tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, add_generation_prompt=True, return_dict=False
    )
    return tuple(ids)


@pytest.mark.parametrize("tools", [(), TOOLS[:1], TOOLS], ids=["no tools", "one tool", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_transformers_renders_what_was_trained(
    models: tuple[Renderer, Renderer, PreTrainedTokenizerFast], name: str, tools: tuple[Tool, ...]
) -> None:
    trained, renderer, tokenizer = models
    messages = CONVERSATIONS[name]
    chat = TemplateInput(tuple(as_text(messages)), tools)
    expected = trained.first(chat).tokens
    assert renderer.first(chat).tokens == expected
    assert ids_of(tokenizer, messages, tools) == expected
    if any(message.get("tool_calls") for message in messages):
        with pytest.raises(TemplateError, match=r"JSON text.*give the object, json\.loads"):
            ids_of(tokenizer, chat.messages, tools)
    bare = [tool["function"] for tool in tools]
    if tools:  # the other form of some servers
        assert tokenizer.apply_chat_template(
            messages, tools=bare, add_generation_prompt=True, tokenize=False
        ) == trained.text(chat)


NAMES = st.sampled_from(["query", "limit", "a", "items", "expression"])
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**6), 10**6),
        st.floats(-1e6, 1e6).map(lambda x: round(x, 3)),
        st.text('ab"\\{}[],:</ \n\té😀', max_size=6),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=2)),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    name=st.sampled_from(["calculator", "search", "now", "elsewhere"]),
    arguments=st.dictionaries(NAMES, VALUES, max_size=3),
    indent=st.sampled_from([None, 1]),
    ensure_ascii=st.booleans(),
)
def test_any_arguments_are_written_as_the_gateway_writes_them(
    chatml: tuple[Renderer, Renderer, PreTrainedTokenizerFast],
    name: str,
    arguments: dict[str, Any],
    indent: int | None,
    ensure_ascii: bool,
) -> None:
    trained, _, tokenizer = chatml
    text = json.dumps(arguments, ensure_ascii=ensure_ascii, indent=indent)
    expected = trained.first(TemplateInput((ASKS, said(call(name, text))), tuple(TOOLS))).tokens
    assert ids_of(tokenizer, [ASKS, said(call(name, arguments))], TOOLS) == expected


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"a": "\\u00e9"}', '{"a": 1E5}', '{"a": 1, "a": 2}', '{"a": 1', "5", " "]
)
def test_arguments_as_text_are_refused_by_the_template_and_never_rendered_otherwise(
    chatml: tuple[Renderer, Renderer, PreTrainedTokenizerFast], text: str
) -> None:
    """A template cannot parse JSON: `\\u00e9` would be other tokens than the é that the gateway writes."""
    with pytest.raises(TemplateError, match=r"call of now are JSON text.*json\.loads"):
        ids_of(chatml[2], [ASKS, said(call("now", text))], TOOLS)


@pytest.fixture(scope="module")
def chatml(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Renderer, Renderer, PreTrainedTokenizerFast]:
    return exported(tmp_path_factory.mktemp("chatml") / "model", CHATML)


def test_smollm2_is_offered_its_tools_by_its_exported_template(tmp_path: Path) -> None:
    base = real_model_dir("smollm2")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (base / name).exists():
            (tmp_path / name).write_bytes((base / name).read_bytes())
    trained = Renderer.load(tmp_path)
    before = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    expected = trained.first(TemplateInput((ASKS,), tuple(TOOLS[:1]))).tokens
    assert len(ids_of(before, [ASKS], TOOLS[:1])) < len(expected)
    store_plain_tools(tmp_path)
    after = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ids_of(after, [ASKS], TOOLS[:1]) == expected


def test_a_template_is_stored_where_every_loader_finds_it(tmp_path: Path) -> None:
    make_model_dir(tmp_path, "smollm2")
    (tmp_path / "chat_template.jinja").unlink()
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "{{ 'others' }}"},
        {"name": "rag", "template": "{{ 'documents' }}"},
    ]
    config = {"chat_template": named, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    store_plain_tools(tmp_path)
    store_plain_tools(tmp_path)
    assert ChatTemplate.load(tmp_path).source == CHATML, "and never twice"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    rendered = tokenizer.apply_chat_template([ASKS], tools=list(TOOLS), tokenize=False)
    assert "calculator(expression: string): Evaluate" in rendered
    assert tokenizer.get_chat_template("rag") == "{{ 'documents' }}"
