"""Our template environment renders what transformers renders, byte for byte."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.tokens.template import ChatTemplate
from tests.gateway.model_dirs import TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find <b>things</b> & more: é, 漢字, 'quotes'.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            },
        },
    }
]


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "search", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": function}],
    }


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "Hi\n"}],
    "with a system message": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "<|im_end|> & <script>"},
    ],
    "two turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello "},
        {"role": "user", "content": "Again"},
    ],
    "thinking": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
        {"role": "user", "content": "Again"},
        {"role": "assistant", "content": "Yes", "reasoning_content": "sure"},
    ],
    "a tool call": [
        {"role": "user", "content": "Find é"},
        _call({"query": "é <b>", "limit": 3}),
        {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"hits": []}'},
    ],
}

EXTRA = {
    "generation tag": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    ),
    "loop controls": (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    ),
    "white space": "  {% if messages %}\n    {{ messages[0].content }}\n  {% endif %}\n\n  end\n",
    "json": "{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ messages | tojson(sort_keys=true) }}",
    "reasoning names": "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}{% endfor %}",
    "date": "{{ strftime_now('%Y-%m-%d') }}",
    "namespace and dict": "{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}{{ dict(b=1) }}",
}


@pytest.mark.parametrize(
    "template", [*TEMPLATES.values(), *EXTRA.values()], ids=[*TEMPLATES, *EXTRA]
)
@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("generate", [False, True])
def test_a_template_renders_as_in_transformers(
    template: str,
    conversation: list[dict[str, Any]],
    tools: list[Any] | None,
    generate: bool,
) -> None:
    try:
        (expected,), _ = render_jinja_template(
            [conversation],
            tools=tools,
            chat_template=template,
            add_generation_prompt=generate,
            **TOKENS,
        )
    except Exception:  # noqa: BLE001 - whatever transformers raises, we refuse too
        with pytest.raises(TemplateRefusalError):
            _render(template, conversation, tools, generate)
        return
    assert _render(template, conversation, tools, generate) == expected


def _render(
    template: str, conversation: list[dict[str, Any]], tools: list[Any] | None, generate: bool
) -> str:
    return ChatTemplate(template, special_tokens=TOKENS).render(
        conversation, tools=tools, add_generation_prompt=generate
    )


def test_a_template_that_is_no_jinja_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="not valid jinja"):
        ChatTemplate("{% for %}")


def test_a_template_cannot_reach_into_python() -> None:
    with pytest.raises(TemplateRefusalError):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render([{"role": "user", "content": ""}])
