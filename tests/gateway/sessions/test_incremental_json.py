"""A body that goes on from the last one means what it says, however it is written."""

import itertools
import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.gateway.sessions.incremental_json import IncrementalBody


def _read_all(bodies: list[bytes]) -> tuple[list[Any], list[bytes]]:
    """The values of the bodies of one session, and those that were parsed as a whole."""
    body, whole = IncrementalBody(), []

    def parse(raw: bytes) -> Any:
        whole.append(raw)
        return orjson.loads(raw)

    values = []
    for raw in bodies:
        try:
            value, digest = body.read(raw, parse=parse)
        except orjson.JSONDecodeError:
            value, digest = "invalid", b""
        assert digest in (b"", blake2b(raw, digest_size=16).digest())
        values.append(value)
    return values, whole


def _loads(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return "invalid"


_MESSAGES = [
    {"role": "system", "content": 'Brackets ]}, quotes \\" and "messages":[ in a text.\n'},
    {"role": "user", "content": "caf\u00e9 \U0001f642 \\ \\\\ \u2028"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "[1, 2]}"},
    {"role": "user", "content": [{"type": "text", "text": "]"}], "name": "u"},
]

_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]


def _compact(body: Any) -> bytes:
    return orjson.dumps(body)


def _spaced(body: Any) -> bytes:
    return json.dumps(body, indent=1, ensure_ascii=False).encode()


def _escaped(body: Any) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize("write", [_compact, _spaced, _escaped])
@pytest.mark.parametrize("tools_first", [False, True])
def test_messages_that_came_before_are_not_parsed_again(
    write: Callable[[Any], bytes], tools_first: bool
) -> None:
    bodies = []
    for n in range(1, len(_MESSAGES) + 1):
        body = {"model": "m", "messages": _MESSAGES[:n], "stream": False}
        bodies.append({"tools": _TOOLS} | body if tools_first else body | {"tools": _TOOLS})
    values, whole = _read_all([write(body) for body in bodies])
    assert values == bodies
    assert whole == []
    for before, after in itertools.pairwise(values):
        for one, other in zip(before["messages"], after["messages"], strict=False):
            assert one is other


def test_what_follows_the_messages_is_read_anew() -> None:
    bodies = [
        {"messages": _MESSAGES[:2], "max_tokens": 5, "stream": True},
        {"messages": _MESSAGES[:2], "max_tokens": 700},
        {"messages": _MESSAGES, "tools": _TOOLS, "n": 2},
    ]
    values, whole = _read_all([_compact(body) for body in bodies])
    assert values == bodies
    assert whole == []


_FIRST = b'{"messages":[{"content":"x"}],"tools":[{"a":[1]}],"n":1}'

_HOSTILE = [
    b'{"messages":[{"content":"x"},{"content":"y"}],"messages":[{"content":"z"}]}',
    b'{"messages":[{"content":"x"}],"\\u006dessages":[7]}',
    b'{"messages":[{"content":"x"}],"tools":[{"a":[1]},{"b":2}],"n":1}',
    b'{"messages":[{"content":"x"}],"tools":[{"a":[1,2]}],"n":1}',
    b'{"messages":[{"content":"x","c":[1]}]}',
    b'{"messages":[{"content":"x"}]',
    b'{"messages":[{"content":"x"},]}',
    b'{"messages":[{"content":"x"}{"content":"y"}]}',
    b'{"messages":[{"content":"x"}]]}',
    b'{"messages":[{"content":"x"}],"n":1}}',
    b'{"messages":[{"content":"x"}, 1, "]", null, [[]], {"role":"us\\"er"}]}',
    b'{"messages":[{"content":"x"}],"messages":5}',
    b'{"messages":[{"content":"x"}],"metadata":{"messages":[1]}}',
    b'{"metadata":{"messages":[1]},"messages":[{"content":"x"}]}',
    b'{"x\\"messages":[1],"messages":[{"content":"x"}]}',
    b'{"messages":"[","x":["\\"messages\\":["]}',
    b'{"messages":[]}',
    b'{"messages":[ ]}',
    b'[{"messages":[{"content":"x"}]}]',
    b'{"messages":[{"content":"x\xff"}]}',
    b'{"messages":[{"content":"x"},{"content":"\\ud800"}]}',
    b'{"n":{"messages":[{"content":"x"}]}}',
    b"",
    b"7",
    b'{"messages":[1]}',
    b'{"messages":[1.5]}',
    b'{"messages":[1.5, 15]}',
]


@pytest.mark.parametrize("second", _HOSTILE)
@pytest.mark.parametrize("first", [_FIRST, *_HOSTILE[:5], _HOSTILE[-3]])
def test_a_body_that_only_looks_like_the_last_one_is_read_as_it_is(
    first: bytes, second: bytes
) -> None:
    bodies = [first, second, first, second, second]
    values, _ = _read_all(bodies)
    assert values == [_loads(raw) for raw in bodies]


def test_a_string_that_never_ends_is_looked_at_once() -> None:
    """Were each of its quotes tried as a beginning, this would take an hour."""
    raw = b'{"messages":["' + b'\\"' * 1_000_000
    assert _read_all([raw, raw])[0] == ["invalid", "invalid"]


_FRAGMENTS = [
    b'{"messages":[',
    b'"messages":[',
    b'{"content":"x"}',
    b'{"content":"\\"]"}',
    b"[1]",
    b",",
    b",",
    b"]",
    b"]",
    b"}",
    b"}",
    b"2",
    b".5",
    b'"n":1',
    b'"tools":[',
    b"{",
    b" ",
    b'"',
    b"\\",
]


@settings(max_examples=400)
@given(
    start=st.sampled_from([_FIRST, b'{"messages":[{"content":"x"}', b'{"n":1,"messages":[1']),
    rests=st.lists(st.lists(st.sampled_from(_FRAGMENTS), max_size=8).map(b"".join), max_size=4),
)
def test_any_two_bodies_with_the_same_beginning_are_told_apart(
    start: bytes, rests: list[bytes]
) -> None:
    bodies = [_FIRST, start + b"]}", *(start + rest for rest in rests)]
    values, _ = _read_all([*bodies, *bodies])
    assert values == [_loads(raw) for raw in [*bodies, *bodies]]


_scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 1) | st.text(max_size=4)

_lists = st.lists(_scalars, max_size=3)

_json = _scalars | _lists | st.dictionaries(st.text(max_size=3), _scalars | _lists, max_size=3)


@settings(max_examples=200)
@given(
    messages=st.lists(_json, min_size=1, max_size=6),
    heads=st.lists(st.dictionaries(st.sampled_from(["model", "n"]), _json), min_size=1, max_size=2),
    sizes=st.lists(st.integers(0, 6), max_size=5),
    write=st.sampled_from([_compact, _spaced, _escaped]),
)
def test_bodies_that_grow_shrink_and_change_are_what_they_say(
    messages: list[Any], heads: list[Any], sizes: list[int], write: Callable[[Any], bytes]
) -> None:
    bodies = [
        write({**head, "messages": messages[:size], "tail": head})
        for size in sizes
        for head in heads
    ]
    values, _ = _read_all(bodies)
    assert values == [orjson.loads(raw) for raw in bodies]
