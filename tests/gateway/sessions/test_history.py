"""A request continues a recorded turn when it means the same, and says why when it does not."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sessions.history import History, Placement
from areal_sdk.gateway.wire.chat import parse
from areal_sdk.gateway.wire.fields import Fields
from areal_sdk.types import ForkReason, Message

SYSTEM: Message = {"role": "system", "content": "Be brief."}
ASK: Message = {"role": "user", "content": "What is 1+1?"}
CALL: Message = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I should add.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": {"x": 1.0, "y": [2]}}'},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
ANSWER: Message = {"role": "assistant", "content": "It is 2."}
NEXT: Message = {"role": "user", "content": "Thanks. And 2+2?"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add"}}


class Recorder:
    """A session's history, played by hand."""

    def __init__(self) -> None:
        self.history = History()
        self.num_turns = 0

    def ask(self, *messages: Message, tools: tuple[Any, ...] = ()) -> Placement:
        return self.history.place(copy.deepcopy(messages), tools=tools, options={})

    def turn(
        self, *messages: Message, answer: Message, tools: tuple[Any, ...] = ()
    ) -> tuple[int | None, ForkReason | None]:
        placement = self.ask(*messages, tools=tools)
        reason = self.history.reason(placement)
        self.history.add(placement, answer, self.num_turns)
        self.num_turns += 1
        return placement.parent, reason


@pytest.fixture
def played() -> Recorder:
    """Two turns: a tool call, then an answer."""
    recorder = Recorder()
    assert recorder.turn(SYSTEM, ASK, answer=CALL, tools=(TOOL,)) == (None, None)
    assert recorder.turn(SYSTEM, ASK, CALL, RESULT, answer=ANSWER, tools=(TOOL,)) == (0, None)
    return recorder


def _with(message: Message, **changes: Any) -> Message:
    return {**copy.deepcopy(message), **changes}


def _with_arguments(arguments: Any, *, id: str = "call_1", name: str = "add") -> Message:
    function = {"name": name, "arguments": arguments}
    return _with(CALL, tool_calls=[{"id": id, "type": "function", "function": function}])


SAME: dict[str, Callable[[], tuple[Message, Message, Message]]] = {
    "as it was": lambda: (CALL, RESULT, ANSWER),
    "arguments without spaces": lambda: (
        _with_arguments('{"a":1,"b":{"x":1.0,"y":[2]}}'),
        RESULT,
        ANSWER,
    ),
    "arguments in another order": lambda: (
        _with_arguments('{"b": {"y": [2], "x": 1}, "a": 1.0}'),
        RESULT,
        ANSWER,
    ),
    "arguments as an object": lambda: (
        _with_arguments({"a": 1, "b": {"x": 1, "y": [2]}}),
        RESULT,
        ANSWER,
    ),
    "an empty content instead of none": lambda: (_with(CALL, content=""), RESULT, ANSWER),
    "reasoning left out": lambda: (
        {k: v for k, v in CALL.items() if k != "reasoning_content"},
        RESULT,
        ANSWER,
    ),
    "the end of the reasoning alone": lambda: (
        _with(CALL, reasoning_content="add."),
        RESULT,
        ANSWER,
    ),
    "reasoning under another name": lambda: (
        {
            **{k: v for k, v in CALL.items() if k != "reasoning_content"},
            "reasoning": "I should add.",
        },
        RESULT,
        ANSWER,
    ),
    "space around the text": lambda: (CALL, RESULT, _with(ANSWER, content=" It is 2.\n")),
    "call ids renamed on both sides": lambda: (
        _with_arguments(CALL["tool_calls"][0]["function"]["arguments"], id="fc_9"),
        _with(RESULT, tool_call_id="fc_9"),
        ANSWER,
    ),
    "fields that say nothing": lambda: (
        _with(CALL, refusal=None, annotations=[], audio=None),
        _with(RESULT, name=None),
        ANSWER,
    ),
    "keys in another order": lambda: (
        dict(reversed(CALL.items())),
        dict(reversed(RESULT.items())),
        ANSWER,
    ),
}


@pytest.mark.parametrize("rewrite", SAME.values(), ids=SAME)
def test_the_same_meaning_continues_the_recorded_turn(
    played: Recorder, rewrite: Callable[[], tuple[Message, Message, Message]]
) -> None:
    call, result, answer = rewrite()
    messages = (SYSTEM, ASK, call, result, answer, NEXT)
    assert played.turn(*messages, answer=ANSWER, tools=(TOOL,)) == (1, None)


Different = tuple[list[Message], tuple[Any, ...], int | None, ForkReason]

DIFFERENT: dict[str, Callable[[], Different]] = {
    "other arguments": lambda: (
        [SYSTEM, ASK, _with_arguments('{"a": 2}'), RESULT, ANSWER, NEXT],
        (TOOL,),
        None,
        ForkReason.ARGS_CHANGED,
    ),
    "another tool": lambda: (
        [SYSTEM, ASK, _with_arguments('{"a": 1}', name="sub"), RESULT, ANSWER, NEXT],
        (TOOL,),
        None,
        ForkReason.EDITED,
    ),
    "another answer": lambda: (
        [SYSTEM, ASK, CALL, RESULT, _with(ANSWER, content="It is 3."), NEXT],
        (TOOL,),
        0,
        ForkReason.EDITED,
    ),
    "other thoughts": lambda: (
        [SYSTEM, ASK, _with(CALL, reasoning_content="I should not add."), RESULT, ANSWER, NEXT],
        (TOOL,),
        None,
        ForkReason.EDITED,
    ),
    "another result": lambda: (
        [SYSTEM, ASK, CALL, _with(RESULT, content="3"), ANSWER, NEXT],
        (TOOL,),
        0,
        ForkReason.EDITED,
    ),
    "another system message": lambda: (
        [_with(SYSTEM, content="Be long."), ASK, CALL, RESULT, ANSWER, NEXT],
        (TOOL,),
        None,
        ForkReason.SYSTEM_CHANGED,
    ),
    "other tools": lambda: (
        [SYSTEM, ASK, CALL, RESULT, ANSWER, NEXT],
        (),
        None,
        ForkReason.TOOLS_CHANGED,
    ),
    "a summary instead of the past": lambda: (
        [SYSTEM, {"role": "user", "content": "Summary: 1+1 is 2. And 2+2?"}],
        (TOOL,),
        None,
        ForkReason.COMPACTION,
    ),
    "a conversation of its own": lambda: (
        [{"role": "system", "content": "You search."}, {"role": "user", "content": "Find it."}],
        (TOOL,),
        None,
        ForkReason.SUBAGENT,
    ),
    "the same question again": lambda: (
        [SYSTEM, ASK, CALL, RESULT],
        (TOOL,),
        0,
        ForkReason.RESAMPLED,
    ),
    "another result, before the answer": lambda: (
        [SYSTEM, ASK, CALL, _with(RESULT, content="3")],
        (TOOL,),
        0,
        ForkReason.EDITED,
    ),
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_another_meaning_branches_with_its_reason(
    played: Recorder, change: Callable[[], Different]
) -> None:
    messages, tools, parent, reason = change()
    assert played.turn(*messages, answer=ANSWER, tools=tools) == (parent, reason)


def test_results_of_parallel_calls_are_told_apart_by_their_call() -> None:
    both = _with(CALL)
    both["tool_calls"] = [
        {"id": f"c{i}", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        for i in range(2)
    ]
    one = {"role": "tool", "tool_call_id": "c0", "content": "A"}
    two = {"role": "tool", "tool_call_id": "c1", "content": "B"}
    recorder = Recorder()
    recorder.turn(ASK, answer=both)
    recorder.turn(ASK, both, one, two, answer=ANSWER)
    swapped = [_with(one, tool_call_id="c1"), _with(two, tool_call_id="c0")]
    assert recorder.turn(ASK, both, *swapped, ANSWER, NEXT, answer=ANSWER)[0] == 0


@pytest.mark.parametrize("said", ["", "Let me add."])
def test_calls_written_as_text_are_the_calls_that_were_sampled(said: str) -> None:
    recorder = Recorder()
    recorder.turn(ASK, answer=_with(CALL, content=said))
    calls = [{**c, "function": {**c["function"]}} for c in CALL["tool_calls"]]
    calls[0]["function"]["arguments"] = {"b": {"y": [2], "x": 1.0}, "a": 1}
    written = f"{said}\nCalling tools:\n{calls}".strip()
    observation = {"role": "user", "content": "Observation:\n2"}
    messages = (ASK, {"role": "assistant", "content": written}, observation)
    assert recorder.turn(*messages, answer=ANSWER) == (0, None)
    calls[0]["function"]["arguments"]["a"] = 2
    changed = {"role": "assistant", "content": f"{said}\nCalling tools:\n{calls}".strip()}
    assert recorder.turn(ASK, changed, observation, answer=ANSWER)[0] is None


def test_calls_written_as_text_come_in_the_order_in_which_they_ended() -> None:
    """smolagents runs parallel calls in threads, and writes them down as each is done."""
    (call,) = CALL["tool_calls"]
    calls = [
        {**call, "id": name, "function": {"name": name, "arguments": '{"a": 1}'}} for name in "xyz"
    ]
    observation = {"role": "user", "content": "Observation:\n2"}
    for order in itertools.permutations(calls):
        recorder = Recorder()
        recorder.turn(ASK, answer=_with(CALL, tool_calls=calls))
        written = {"role": "assistant", "content": f"Calling tools:\n{list(order)}"}
        assert recorder.turn(ASK, written, observation, answer=ANSWER) == (0, None)
        assert recorder.turn(ASK, written, observation, ANSWER, NEXT, answer=ANSWER) == (1, None)
    fewer = {"role": "assistant", "content": f"Calling tools:\n{calls[:2]}"}
    recorder = Recorder()
    recorder.turn(ASK, answer=_with(CALL, tool_calls=calls))
    assert recorder.turn(ASK, fewer, observation, answer=ANSWER)[0] is None


@pytest.mark.parametrize("calls", ["[{1, 2}]", "[{'function': 3}]", "[x]", "[", "[{b'': 1}]"])
def test_text_that_only_looks_like_calls_is_text(calls: str) -> None:
    recorder = Recorder()
    recorder.turn(ASK, answer=CALL)
    written = {"role": "assistant", "content": f"Calling tools:\n{calls}"}
    assert recorder.turn(ASK, written, NEXT, answer=ANSWER)[0] is None


def test_a_few_shot_prompt_is_no_fork() -> None:
    assert Recorder().turn(SYSTEM, ASK, ANSWER, NEXT, answer=ANSWER) == (None, None)


def test_a_branch_keeps_what_it_truly_shares(played: Recorder) -> None:
    """An edit late in the conversation still extends the turns before it."""
    edited = (SYSTEM, ASK, CALL, RESULT, _with(ANSWER, content="Two!"), NEXT)
    placement = played.ask(*edited, tools=(TOOL,))
    assert (placement.parent, placement.num_matched) == (0, 3)


def test_a_branch_can_be_continued(played: Recorder) -> None:
    edited = (SYSTEM, ASK, CALL, RESULT, _with(ANSWER, content="Two!"), NEXT)
    played.turn(*edited, answer=ANSWER, tools=(TOOL,))
    assert played.turn(*edited, ANSWER, ASK, answer=ANSWER, tools=(TOOL,)) == (2, None)
    first_branch = (SYSTEM, ASK, CALL, RESULT, ANSWER, NEXT)
    assert played.turn(*first_branch, answer=ANSWER, tools=(TOOL,)) == (1, None)


@pytest.mark.parametrize("thought", ["<think>\nhm\n</think>\n\n", "hm\n</think>\n"])
def test_thoughts_cut_out_of_a_text_are_a_fork_with_that_reason(thought: str) -> None:
    """The template shows a text as it is, so the prompt would hold what nobody sampled there."""
    recorder = Recorder()
    recorder.turn(ASK, answer=_with(ANSWER, content=thought + "It is 2."))
    forked = recorder.turn(ASK, ANSWER, NEXT, answer=ANSWER)
    assert forked == (None, ForkReason.THINKING_DROPPED)


def test_choices_that_differ_only_in_their_thoughts_are_told_apart_by_them() -> None:
    recorder = Recorder()
    recorder.turn(ASK, answer=_with(ANSWER, reasoning_content="one"))
    recorder.turn(ASK, answer=_with(ANSWER, reasoning_content="two"))
    second = _with(ANSWER, reasoning_content="two")
    assert recorder.turn(ASK, second, NEXT, answer=ANSWER) == (1, None)
    assert recorder.turn(ASK, ANSWER, NEXT, answer=ANSWER)[0] == 0
    third = _with(ANSWER, reasoning_content="three")
    assert recorder.turn(ASK, third, NEXT, answer=ANSWER) == (None, ForkReason.EDITED)


def _parallel(*ids: str) -> Message:
    calls = [{"id": i, "type": "function", "function": {"name": i, "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _results(*ids: str) -> list[Message]:
    return [{"role": "tool", "tool_call_id": i, "content": f"result of {i}"} for i in ids]


@pytest.mark.parametrize("said", ["zeta alpha", "alpha zeta"])
def test_calls_sent_back_in_another_order_are_a_fork(said: str) -> None:
    """The recorded tokens hold the calls as sampled: results without ids would go to the wrong one."""
    recorder = Recorder()
    recorder.turn(ASK, answer=_parallel(*said.split()))
    moved = said.split()[::-1]
    forked = recorder.turn(ASK, _parallel(*moved), *_results(*moved), answer=ANSWER)
    assert forked == (None, ForkReason.EDITED)


def test_answers_with_the_same_calls_in_another_order_are_told_apart() -> None:
    recorder = Recorder()
    orders = [("zeta", "alpha"), ("alpha", "zeta")]
    for order in orders:
        recorder.turn(ASK, answer=_parallel(*order))
    for turn, order in enumerate(orders):
        placement = recorder.ask(ASK, _parallel(*order), *_results(*order))
        assert (placement.parent, placement.num_matched) == (turn, 2)


def test_a_call_written_as_text_is_known_by_the_thoughts_before_it() -> None:
    recorder = Recorder()
    for thought in ("one", "two"):
        recorder.turn(ASK, answer=_with(CALL, reasoning_content=thought))
    written = f"Calling tools:\n{CALL['tool_calls']}"
    message = {"role": "assistant", "content": written, "reasoning_content": "two"}
    assert recorder.turn(ASK, message, NEXT, answer=ANSWER)[0] == 1


def test_calls_written_as_text_are_remembered_when_what_came_before_is_dropped() -> None:
    recorder = Recorder()
    written = {"role": "assistant", "content": f"Calling tools:\n{CALL['tool_calls']}"}
    recorder.turn(SYSTEM, ASK, answer=CALL)
    assert recorder.turn(SYSTEM, ASK, written, NEXT, answer=ANSWER) == (0, None)
    assert recorder.turn(written, NEXT, answer=ANSWER) == (None, ForkReason.COMPACTION)


def test_results_stand_in_the_order_of_their_calls_however_they_come() -> None:
    history = History()
    for order in ("abc", "cab", "cba"):
        messages = [ASK, _parallel(*"abc"), *_results(*order), NEXT]
        for length in (3, 4, 5, 6, 4):
            seen = history.canonical(messages[:length], splits_reasoning=False)
            ids = [m["tool_call_id"] for m in seen if m["role"] == "tool"]
            assert ids == sorted(order[: length - 2])


@pytest.mark.parametrize("ids", ["ax", "aa", "xy"])
def test_results_of_unknown_calls_stay_where_they_are(ids: str) -> None:
    messages = [ASK, _parallel("b", "a"), *_results(*ids)]
    seen = History().canonical(messages, splits_reasoning=False)
    assert [m["tool_call_id"] for m in seen[2:]] == list(ids)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("9223372036854775808000000001", "9223372036854775808000000002"),
        ("18446744073709551616", "18446744073709551617"),
        ('["text", "a"]', "a b"),
    ],
)
def test_arguments_that_differ_in_the_last_digit_differ(said: str, sent: str) -> None:
    recorder = Recorder()
    recorder.turn(ASK, answer=_with_arguments(f'{{"id": {said}}}'))
    forked = recorder.turn(ASK, _with_arguments(f'{{"id": {sent}}}'), RESULT, answer=ANSWER)
    assert forked == (None, ForkReason.ARGS_CHANGED)
    same = recorder.turn(ASK, _with_arguments(f'{{"id":{said}}}'), RESULT, answer=ANSWER)
    assert same == (0, None)


def test_what_the_last_request_held_is_not_looked_at_again() -> None:
    past = [SYSTEM, ASK, CALL, RESULT]
    known = parse(Fields({"model": "m", "messages": past})).request.messages
    again = [*copy.deepcopy(past), ANSWER, NEXT]
    messages = parse(Fields({"model": "m", "messages": again}), known=known).request.messages
    assert list(messages) == again
    assert all(one is other for one, other in zip(messages[:4], known, strict=True))


def test_what_is_new_in_a_request_is_checked_under_its_own_number() -> None:
    known = parse(Fields({"model": "m", "messages": [SYSTEM, ASK]})).request.messages
    bad = {"role": "robot", "content": "?"}
    with pytest.raises(ApiError, match=r"messages\[2\].role is 'robot'"):
        parse(Fields({"model": "m", "messages": [SYSTEM, ASK, bad]}), known=known)


def _named(name: str, arguments: str, *, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _with_calls(*calls: dict[str, Any], content: str | None = None) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


ADD = _named("add", '{"a": 1}', id="call_add")
SUB = _named("sub", '{"b": 2}', id="call_sub")


def _request(recorder: Recorder, *messages: Message) -> tuple[Placement, tuple[Message, ...]]:
    """Place a request as the gateway does: in canonical form first."""
    read = recorder.history.canonical(copy.deepcopy(messages), splits_reasoning=False)
    return recorder.history.place(read, tools=(), options={}), read


def test_calls_that_come_back_in_another_order_are_known_by_their_ids() -> None:
    """haystack and semantic-kernel sort them; results carry the ids, so each finds its call."""
    recorder = Recorder()
    recorder.turn(ASK, answer=_with_calls(ADD, SUB))
    results = _results("call_sub", "call_add")
    placement, read = _request(recorder, ASK, _with_calls(SUB, ADD), *results)
    assert (placement.parent, placement.num_matched) == (0, 2)
    assert [m["tool_call_id"] for m in read[2:]] == ["call_add", "call_sub"]


def test_calls_in_another_order_whose_results_have_no_ids_stay_a_fork() -> None:
    recorder = Recorder()
    recorder.turn(ASK, answer=_with_calls(ADD, SUB))
    said: Message = {"role": "user", "content": "Results: 1, 2"}
    assert _request(recorder, ASK, _with_calls(SUB, ADD), said)[0].parent is None


def test_calls_that_come_back_without_the_text_beside_them_are_known_by_their_ids() -> None:
    """crewai and agno keep the calls alone."""
    recorder = Recorder()
    recorder.turn(ASK, answer=_with_calls(ADD, content="Let me add."))
    placement, _ = _request(recorder, ASK, _with_calls(ADD), *_results("call_add"))
    assert (placement.parent, placement.num_matched) == (0, 2)


def test_calls_without_text_go_to_the_answer_that_has_their_ids() -> None:
    """Two answers to one prompt with the same call: only the id tells which one is continued."""
    recorder = Recorder()
    recorder.turn(ASK, answer=_with_calls({**ADD, "id": "first"}))
    recorder.turn(ASK, answer=_with_calls({**ADD, "id": "second"}, content="Let me add."))
    for turn, name in enumerate(("first", "second")):
        placement, _ = _request(recorder, ASK, _with_calls({**ADD, "id": name}), *_results(name))
        assert placement.parent == turn


@pytest.mark.parametrize(
    "told",
    [
        _with_calls(_named("add", '{"a": 9}', id="call_add"), SUB),
        _with_calls(ADD),
        _with_calls(ADD, SUB, content="I never said this."),
        _with_calls(ADD, {**SUB, "id": "call_add"}),
    ],
    ids=["other arguments", "a call fewer", "other text", "one id twice"],
)
def test_ids_prove_nothing_where_something_else_was_said(told: Message) -> None:
    recorder = Recorder()
    recorder.turn(ASK, answer=_with_calls(ADD, SUB, content="Let me see."))
    placement, _ = _request(recorder, ASK, told, *_results("call_add"))
    assert placement.parent is None


def test_the_last_piece_of_a_thought_stands_for_the_thought() -> None:
    """openai's JavaScript client keeps the last fragment of a field that it does not know."""
    recorder = Recorder()
    recorder.turn(ASK, answer=_with(ANSWER, reasoning_content="One and one is two."))
    piece = _with(ANSWER, reasoning_content=" two.")
    assert recorder.turn(ASK, piece, NEXT, answer=ANSWER) == (0, None)


def test_the_last_piece_of_a_thought_finds_the_choice_that_thought_it() -> None:
    recorder = Recorder()
    for thought in ("It is one.", "It is two."):
        recorder.turn(ASK, answer=_with(ANSWER, reasoning_content=thought))
    piece = _with(ANSWER, reasoning_content="two.")
    assert recorder.turn(ASK, piece, NEXT, answer=ANSWER)[0] == 1


def test_a_stop_string_that_the_client_writes_down_is_no_change() -> None:
    """smolagents' CodeAgent closes its code block itself: the stop string was cut off."""
    recorder = Recorder()
    code = _with(ANSWER, content="<code>\nprint(2)\n")
    placement = recorder.ask(ASK)
    recorder.history.add(placement, code, 0, stops=("Observation:", "</code>"))
    closed = _with(ANSWER, content="<code>\nprint(2)\n</code>")
    assert recorder.ask(ASK, closed, NEXT).parent == 0
    assert recorder.ask(ASK, _with(ANSWER, content="<code>\nprint(2)\n</b>"), NEXT).parent is None


CODE = "x = calculator(\"1 + 1\")\nprint(x, '→')"


def _code_agent_writes(code: Any, name: str = "python_interpreter") -> Message:
    """smolagents' CodeAgent: the text, the stop string, and the code once more as a call."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": code}}
    text = f"Let me see.\n<code>\n{CODE}\n</code>\nCalling tools:\n{[call]}"
    return {"role": "assistant", "content": text}


def _code_was_sampled() -> Recorder:
    recorder = Recorder()
    said: Message = {"role": "assistant", "content": f"Let me see.\n<code>\n{CODE}\n"}
    recorder.history.add(recorder.ask(ASK), said, 0, stops=("Observation:", "</code>"))
    return recorder


def test_the_code_that_a_code_agent_repeats_as_a_call_is_no_change() -> None:
    recorder = _code_was_sampled()
    placement = recorder.ask(ASK, _code_agent_writes(CODE), NEXT)
    assert (placement.parent, recorder.history.reason(placement)) == (0, None)


@pytest.mark.parametrize(
    "written",
    [_code_agent_writes({"code": CODE}), _code_agent_writes(CODE, "calculator")],
    ids=["a tool that takes code", "another tool"],
)
def test_a_call_that_only_looks_like_repeated_code_is_a_change(written: Message) -> None:
    recorder = _code_was_sampled()
    placement = recorder.ask(ASK, written, NEXT)
    assert (placement.parent, recorder.history.reason(placement)) == (None, ForkReason.EDITED)


def test_a_question_with_other_instructions_and_tools_is_anothers() -> None:
    """A coding agent asks for a title of the conversation, with instructions of its own."""
    title: Message = {"role": "system", "content": "You write titles."}
    recorder = Recorder()
    recorder.turn(title, ASK, answer=_with(ANSWER, content="Sums"))
    assert recorder.turn(SYSTEM, ASK, answer=CALL, tools=(TOOL,)) == (None, ForkReason.SUBAGENT)
    assert recorder.turn(SYSTEM, ASK, CALL, RESULT, answer=ANSWER, tools=(TOOL,)) == (1, None)


def _said_then_called(text: str) -> Message:
    return {**CALL, "content": text}


def test_texts_of_a_question_that_come_back_joined_are_no_change() -> None:
    """semantic-kernel's stream ends with one message of all that was said since the question."""
    recorder = Recorder()
    first, last = _said_then_called("Let me see. "), ANSWER
    recorder.turn(ASK, answer=first, tools=(TOOL,))
    called = {**first, "content": None}
    recorder.turn(ASK, called, RESULT, answer=last, tools=(TOOL,))
    joined = _with(ANSWER, content=f"Let me see. {ANSWER['content']}")
    assert recorder.turn(ASK, called, RESULT, joined, NEXT, answer=ANSWER, tools=(TOOL,)) == (
        1,
        None,
    )
    # What was said to the question before is no part of it.
    twice = _with(ANSWER, content=f"Let me see. {ANSWER['content']}{ANSWER['content']}")
    chat = (ASK, called, RESULT, joined, NEXT, twice, ASK)
    assert recorder.turn(*chat, answer=ANSWER, tools=(TOOL,)) == (1, ForkReason.EDITED)
