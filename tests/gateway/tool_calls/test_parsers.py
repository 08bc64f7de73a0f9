"""A completion is read as the same message, however it is cut into pieces."""

# ruff: noqa: RUF001 - DeepSeek's tags are written with full-width bars

import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.builtin import TOOL_FORMATS
from areal_sdk.gateway.sampling.reader import StopFilter
from areal_sdk.gateway.tool_calls import FORMATS, choose_format
from areal_sdk.gateway.tool_calls.reasoning import PlainText, Reasoning
from areal_sdk.plugins import load_plugins
from areal_sdk.tool_calls import Event, Parser, ReasoningDelta, TextDelta, ToolCall
from tests.gateway.conftest import StartGateway
from tests.gateway.tool_calls.three_tools import TOOLS

HERMES, PLAIN = FORMATS["hermes"], FORMATS["plain"]

Message = tuple[str, str, list[tuple[str, Any]]]


def read(parser: Parser, pieces: Sequence[str]) -> Message:
    events: list[Event] = [event for piece in pieces for event in parser.feed(piece)]
    return summarise([*events, *parser.finish()])


def summarise(events: Sequence[Event]) -> Message:
    return (
        "".join(e.text for e in events if isinstance(e, ReasoningDelta)),
        "".join(e.text for e in events if isinstance(e, TextDelta)),
        [(e.name, json.loads(e.arguments)) for e in events if isinstance(e, ToolCall)],
    )


PARSERS: dict[str, Callable[[], Parser]] = {
    "none": PlainText,
    **{name: partial(f.parser, TOOLS) for name, f in FORMATS.items()},
    "reasoning, hermes": lambda: Reasoning(HERMES.parser(TOOLS)),
    "reasoning, already open": lambda: Reasoning(PLAIN.parser(TOOLS), open_already=True),
}

FRAGMENTS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    '{"name": "calculator", "arguments": {"expression": "1+1"}}',
    '\n{"name": "x"}\n',
    "<think>",
    "</think>",
    "</thi",
    'calculator("1+1")',
    "calculator(",
    'search("a", limit=3)',
    "now()",
    "\n",
    "  ",
    "hello",
    "é🙂",
    "<",
    "[TOOL_CALLS]",
    '[{"name": "now", "arguments": {}}]',
    'search[ARGS]{"query": "a"}',
    '{"name": "now", "parameters": {}}',
    "<|python_tag|>",
    "; ",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "search\n<arg_key>query</arg_key>\n<arg_value>12</arg_value>",
    "<function=search>\n<parameter=query>\na\nb\n</parameter>\n</function>",
)


@settings(max_examples=400)
@given(
    name=st.sampled_from(sorted(PARSERS)),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_any_split_reads_the_same(name: str, fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert read(PARSERS[name](), pieces) == read(PARSERS[name](), [text])


@settings(max_examples=200)
@given(text=st.text(max_size=60), cut=st.integers(0, 60))
def test_plain_text_passes_unchanged(text: str, cut: int) -> None:
    assert read(PlainText(), [text[:cut], text[cut:]]) == ("", text, [])


HERMES_CASES: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "no call": ("Just text.", "Just text.", []),
    "a call": (
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "",
        [("now", {})],
    ),
    "text, then two calls": (
        'Sure.\n<tool_call>{"name": "now"}</tool_call>\n<tool_call>\n{"name": "search", '
        '"arguments": {"query": "é"}}\n</tool_call>',
        "Sure.",
        [("now", {}), ("search", {"query": "é"})],
    ),
    "no end tag": ('<tool_call>\n{"name": "now", "arguments": {}}', "", [("now", {})]),
    "cut off": ('<tool_call>\n{"name": "now", "argu', '<tool_call>\n{"name": "now", "argu', []),
    "not JSON": ("<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", []),
    "arguments that are a list": (
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        [],
    ),
    "arguments as a string": (
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("now", {"a": 1})],
    ),
    "a broken call before a good one": (
        '<tool_call>oops</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        "<tool_call>oops</tool_call>",
        [("now", {})],
    ),
}


@pytest.mark.parametrize(("text", "content", "calls"), HERMES_CASES.values(), ids=HERMES_CASES)
def test_hermes(text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    parser = HERMES.parser(TOOLS)
    assert read(parser, list(text)) == ("", content, calls)
    assert bool(parser.problems) == ("<tool_call>" in content)


PLAIN_CASES: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "one value": ('calculator("11+22")', "", [("calculator", {"expression": "11+22"})]),
    "named": (
        'search(query="say \\"hi\\"", limit=3)',
        "",
        [("search", {"query": 'say "hi"', "limit": 3})],
    ),
    "mixed": ("search('a', limit=None)", "", [("search", {"query": "a", "limit": None})]),
    "in order": ('search("a", 2,)', "", [("search", {"query": "a", "limit": 2})]),
    "nothing inside": ("  now ( ) ", "", [("now", {})]),
    "values of every kind": (
        'search([1, {"a": true}], limit=False)',
        "",
        [("search", {"query": [1, {"a": True}], "limit": False})],
    ),
    "two calls": ("now()\nnow()\n", "", [("now", {}), ("now", {})]),
    "text around": ("I see.\nnow()\nDone.", "I see.\nDone.", [("now", {})]),
    "no call: more on the line": ('calculator("1+1") = 2', 'calculator("1+1") = 2', []),
    "no call: unquoted": ("calculator(11+22)", "calculator(11+22)", []),
    "no call: unknown tool": ('run("x")', 'run("x")', []),
    "no call: too many values": ('calculator("1", "2")', 'calculator("1", "2")', []),
    "no call: twice": ('search("a", query="b")', 'search("a", query="b")', []),
    "no call: value after a name": ('search(limit=1, "a")', 'search(limit=1, "a")', []),
    "no call: cut off": ('calculator("11', 'calculator("11', []),
    "no call: in a sentence": ('Use calculator("1").', 'Use calculator("1").', []),
    "no call: not a number": ("calculator(NaN)", "calculator(NaN)", []),
}


@pytest.mark.parametrize(("text", "content", "calls"), PLAIN_CASES.values(), ids=PLAIN_CASES)
def test_plain(text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    assert read(PLAIN.parser(TOOLS), list(text)) == ("", content, calls)


A: dict[str, Any] = {"query": "12", "limit": 3}
NOW: tuple[str, Any] = ("now", {})

FAMILIES: dict[str, tuple[str, str, str, list[tuple[str, Any]]]] = {
    "mistral, a list": (
        "mistral",
        '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "search", "arguments": '
        '{"query": "12", "limit": 3}, "id": "abcdefghi"}]',
        "",
        [NOW, ("search", A)],
    ),
    "mistral, names": (
        "mistral",
        'Well.[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]search{"query": "12", "limit": 3}',
        "Well.",
        [NOW, ("search", A)],
    ),
    "mistral, broken": ("mistral", "[TOOL_CALLS]oops", "[TOOL_CALLS]oops", []),
    "llama": (
        "llama",
        '{"name": "search", "parameters": {"query": "12", "limit": 3}}',
        "",
        [("search", A)],
    ),
    "llama, two": (
        "llama",
        '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
        "",
        [NOW, NOW],
    ),
    "llama, JSON that is no call": (
        "llama",
        '{"name": "Ada", "age": 3}',
        '{"name": "Ada", "age": 3}',
        [],
    ),
    "llama, text": ("llama", "Hello {", "Hello {", []),
    "deepseek v3": (
        "deepseek",
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        '{"query": "12", "limit": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "Hm.",
        [NOW, ("search", A)],
    ),
    "deepseek v3.1": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>"
        '{"query": "12", "limit": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [("search", A)],
    ),
    "glm": (
        "glm",
        "Hm.\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>12</arg_value>\n"
        "<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call><tool_call>now\n</tool_call>",
        "Hm.",
        [("search", {"query": "12", "limit": "3"}), NOW],
    ),
    "glm, broken": (
        "glm",
        '<tool_call>{"a": 1}</tool_call>',
        '<tool_call>{"a": 1}</tool_call>',
        [],
    ),
    "qwen coder": (
        "qwen_coder",
        "<tool_call>\n<function=search>\n<parameter=query>\na\nb\n</parameter>\n</function>\n"
        "</tool_call>",
        "",
        [("search", {"query": "a\nb"})],
    ),
}


@pytest.mark.parametrize(("family", "text", "content", "calls"), FAMILIES.values(), ids=FAMILIES)
def test_families(family: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    assert read(FORMATS[family].parser(TOOLS), list(text)) == ("", content, calls)


def test_an_argument_keeps_the_type_its_tool_declares() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    text = (
        "<tool_call>f\n<arg_key>n</arg_key><arg_value>3</arg_value>"
        "<arg_key>s</arg_key><arg_value>3</arg_value></tool_call>"
    )
    assert read(FORMATS["glm"].parser(tools), [text])[2] == [("f", {"n": 3, "s": "3"})]


DETECTED = {
    "hermes": '<tool_call>\\n{"name": ',
    "mistral": "[TOOL_CALLS][",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "glm": "<tool_call>{{ name }}<arg_key>",
    "qwen_coder": "<tool_call>\\n<function=",
    "llama": '"parameters": ',
}


@pytest.mark.parametrize(("name", "source"), DETECTED.items())
def test_a_format_is_chosen_from_the_template(name: str, source: str) -> None:
    assert choose_format(source).name == name


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"plain"}))
def test_an_opening_begins_a_call_that_can_be_read(name: str) -> None:
    """The text that `tool_choice` puts in front of the model's text is the start of this very
    format."""
    opening = FORMATS[name].opening
    rest = {
        "hermes": "{}}\n</tool_call>",
        "mistral": "{}}]",
        "deepseek": "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "glm": "</tool_call>",
        "qwen_coder": "</function>\n</tool_call>",
        "llama": "{}}",
    }[name]
    assert read(FORMATS[name].parser(TOOLS), [opening("now"), rest]) == ("", "", [NOW])


def test_a_line_is_held_back_only_while_it_can_be_a_call() -> None:
    parser = PLAIN.parser(TOOLS)
    assert parser.feed("calc") == []
    assert parser.feed("ium") == [TextDelta("calcium")]
    assert parser.feed(" now()") == [TextDelta(" now()")]


REASONING_CASES = {
    "thought and answer": ("<think>\nhm\n</think>\n\nHi", False, "hm", "Hi"),
    "an empty thought": ("<think>\n\n</think>\n\nHi", False, "", "Hi"),
    "no thought": ("Hi <think>x</think>", False, "", "Hi <think>x</think>"),
    "opened by the prompt": ("hm</think>Hi", True, "hm", "Hi"),
    "never closed": ("<think>hm and", False, "hm and", ""),
    "space first": ("  Hi", False, "", "  Hi"),
}


@pytest.mark.parametrize(
    ("text", "open_already", "thought", "answer"), REASONING_CASES.values(), ids=REASONING_CASES
)
def test_reasoning(text: str, open_already: bool, thought: str, answer: str) -> None:
    parser = Reasoning(PlainText(), open_already=open_already)
    assert read(parser, list(text)) == (thought, answer, [])


@settings(max_examples=200)
@given(
    text=st.text("abS TOP\n", max_size=30),
    stops=st.lists(st.sampled_from(["STOP", "a", "bb", "OP\n", "ab"]), max_size=3),
)
def test_text_is_cut_at_the_stop_string_that_is_complete_first(text: str, stops: list[str]) -> None:
    stop = StopFilter(stops)
    passed = "".join([*map(stop.feed, text), stop.finish()])
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not ends:
        assert (passed, stop.matched) == (text, None)
        return
    end, _, matched = min(ends)
    assert (passed, stop.matched) == (text[: end - len(matched)], matched)


async def test_a_tool_format_can_be_named(start_gateway: StartGateway) -> None:
    """The template of this model shows Hermes; the model was tuned on something else."""
    call = (
        "<tool_call>calculator\n<arg_key>expression</arg_key><arg_value>1</arg_value></tool_call>"
    )
    gateway, _ = await start_gateway(call, tool_format="glm")
    session = gateway.sessions.open("e")
    turn = await session.generate([{"role": "user", "content": "Hi"}], tools=TOOLS)
    assert turn.message["tool_calls"][0]["function"]["arguments"] == '{"expression":"1"}'


def test_every_format_can_be_named_in_the_settings() -> None:
    registered = load_plugins().tool_formats
    assert [registered.get(name) for name in TOOL_FORMATS] == list(FORMATS.values())
    assert registered.in_order()[-len(FORMATS) :] == list(FORMATS.values())
