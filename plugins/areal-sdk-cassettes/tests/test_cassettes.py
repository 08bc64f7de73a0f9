import json
import random
from pathlib import Path

import pytest

from areal_sdk import ConfigError, Message, Task
from areal_sdk.testing import assistant, check_environment, check_plugin, run_agent, tool_call
from areal_sdk.types import OutcomeKind
from areal_sdk_cassettes.environment import UNSEEN, CassetteEnvironment
from areal_sdk_cassettes.recording import Recording
from areal_sdk_cassettes.replay import replay
from areal_sdk_cassettes.rewards import cassette

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "default": "C"}},
            "required": ["city"],
        },
    },
}


class Answering(CassetteEnvironment):
    """The environment with `unseen = "answer"`."""

    def __init__(self) -> None:
        super().__init__(unseen="answer")


def recorded(*messages: Message, tools: tuple[dict[str, object], ...] = (WEATHER,)) -> Task:
    """A task whose recording has the messages; each call has an id of its own, and its result follows."""
    numbered: list[Message] = []
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            message = {**message, "tool_call_id": open_calls.pop(0)}
        calls = [
            {**c, "id": f"rec_{len(numbered)}_{n}"}
            for n, c in enumerate(message.get("tool_calls") or ())
        ]
        if calls:
            message = {**message, "tool_calls": calls}
            open_calls = [call["id"] for call in calls]
        numbered.append(message)
    return Task("recording", {"messages": numbered, "tools": list(tools)})


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def result(text: str) -> Message:
    return {"role": "tool", "content": text}


OSLO = recorded(
    user("How warm is it in Oslo?"),
    assistant(None, ("weather", {"city": "Oslo"})),
    result("4"),
    assistant("4 degrees."),
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Oslo"},
        '{ "city" :"Oslo"}',
        {"unit": "C", "city": "Oslo"},
        {"city": "Oslo", "unit": None},
        '{"city": "\\u004fslo"}',
    ],
)
async def test_a_call_that_means_the_same_gets_the_recorded_result(arguments: object) -> None:
    steps = await check_environment(
        CassetteEnvironment, OSLO, replies=[assistant(None, ("weather", arguments))]
    )
    assert steps[0].messages == [{"role": "tool", "tool_call_id": "call_0", "content": "4"}]
    assert not steps[0].done


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("weather", {"city": "oslo"}),
        ("weather", {"city": "Oslo", "unit": "F"}),
        ("forecast", {"city": "Oslo"}),
        ("weather", ""),
        ("weather", "Oslo"),
        ("weather", {"city": True}),
    ],
)
async def test_a_call_that_means_something_else_ends_the_episode(
    name: str, arguments: object
) -> None:
    steps = await check_environment(
        CassetteEnvironment, OSLO, replies=[assistant(None, (name, arguments))]
    )
    assert steps[0].messages[0]["content"] == UNSEEN
    assert steps[0].done
    assert steps[0].reward is None


async def test_numbers_and_nested_keys_are_compared_by_value() -> None:
    task = recorded(
        user("Find them."),
        assistant(None, ("find", {"where": {"a": 1, "b": [1, 2.0]}, "limit": 10})),
        result("found"),
        assistant("Here."),
        tools=(),
    )
    same = assistant(None, ("find", '{"limit": 10.0, "where": {"b": [1.0, 2], "a": 1}}'))
    other = assistant(None, ("find", {"where": {"a": 1, "b": [2, 1]}, "limit": 10}))
    for call, content in ((same, "found"), (other, UNSEEN)):
        steps = await check_environment(CassetteEnvironment, task, replies=[call])
        assert steps[0].messages[0]["content"] == content


async def test_a_repeated_call_gets_its_results_in_their_order() -> None:
    look = assistant(None, ("weather", {"city": "Oslo"}))
    task = recorded(
        user("Wait for a change."), look, result("4"), look, result("5"), assistant("It is 5 now.")
    )
    steps = await check_environment(CassetteEnvironment, task, replies=[look, look, look])
    assert [step.messages[0]["content"] for step in steps] == ["4", "5", "5"]


async def test_a_call_without_a_result_is_not_recorded() -> None:
    call = assistant(None, ("weather", {"city": "Oslo"}))
    task = recorded(user("Oslo?"), call, assistant("I do not know."))
    steps = await check_environment(CassetteEnvironment, task, replies=[call])
    assert steps[0].done


async def test_parallel_calls_with_one_id_get_the_results_in_their_order() -> None:
    calls = assistant(None, ("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}))
    for call in calls["tool_calls"]:
        call["id"] = "weather"
    results = [{**result(text), "tool_call_id": "weather"} for text in ("4", "19")]
    task = Task("r", {"messages": [user("?"), calls, *results, assistant("4 and 19.")]})
    assert await replay(task) == ""
    rome = assistant(None, ("weather", {"city": "Rome"}))
    steps = await check_environment(CassetteEnvironment, task, replies=[rome])
    assert steps[0].messages[0]["content"] == "19"


async def test_an_id_that_is_used_again_belongs_to_its_last_call() -> None:
    calls = [assistant(None, ("weather", {"city": city})) for city in ("Oslo", "Rome")]
    for message in calls:
        message["tool_calls"][0]["id"] = "call_0"
    said = [user("?"), *calls, {**result("19"), "tool_call_id": "call_0"}, assistant("19.")]
    task = Task("r", {"messages": said, "tools": [WEATHER]})
    steps = await check_environment(CassetteEnvironment, task, replies=[calls[1]])
    assert steps[0].messages[0]["content"] == "19"


@pytest.mark.parametrize("depth", [600, 100_000])
async def test_arguments_that_are_nested_too_deep_are_not_recorded(depth: int) -> None:
    deep = '{"city": ' + "[" * depth + "]" * depth + "}"
    steps = await check_environment(
        CassetteEnvironment, OSLO, replies=[assistant(None, ("weather", deep))]
    )
    assert steps[0].messages[0]["content"] == UNSEEN


async def test_silence_is_never_the_recorded_answer() -> None:
    task = recorded(user("?"), assistant(None, ("weather", {"city": "Oslo"})))
    episode = await run_agent(CassetteEnvironment, task, engine=[""], reward=cassette)
    assert episode.outcome.kind is OutcomeKind.ABSTAIN


async def test_the_recorded_user_goes_on_after_an_answer() -> None:
    task = recorded(user("Hello."), assistant("Hello!"), user("Bye."), assistant("Bye!"))
    steps = await check_environment(CassetteEnvironment, task, replies=["Hi.", "See you."])
    assert [list(step.messages) for step in steps] == [[user("Bye.")], []]
    assert steps[1].done


async def test_examples_in_the_prompt_are_context() -> None:
    example = {**assistant("An example."), "weight": 0}
    task = recorded(user("Say it."), example, user("Now you."), assistant("Mine."))
    opening = await CassetteEnvironment().reset(task)
    assert opening == [user("Say it."), assistant("An example."), user("Now you.")]


def test_missing_tools_are_derived_from_the_calls() -> None:
    call = assistant(None, ("find", {"name": "a", "deep": True, "limit": 3, "tags": ["x"]}))
    (tool,) = Recording.of(recorded(user("?"), call, result("b"), assistant("b"), tools=())).tools
    assert tool["function"]["name"] == "find"
    assert tool["function"]["parameters"]["properties"] == {
        "name": {"type": "string"},
        "deep": {"type": "boolean"},
        "limit": {"type": "integer"},
        "tags": {"type": "array", "items": {}},
    }


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"messages": []},
        {"messages": "hello"},
        {"messages": [user("?")]},
        {"messages": [assistant("!")]},
        {
            "messages": [
                user("hi"),
                {"role": "assistant", "tool_calls": [{"id": "a", "name": "add"}]},
            ]
        },
    ],
)
async def test_a_row_that_is_no_recording_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="task seven"):
        await CassetteEnvironment().reset(Task("seven", data))


async def test_every_recording_replays() -> None:
    rng = random.Random(7)
    for number in range(200):
        messages: list[Message] = [user(f"request {number}")]
        for _ in range(rng.randint(1, 4)):
            for _ in range(rng.randint(0, 3)):
                calls = [
                    ("tool", {"at": rng.randint(0, 3), "text": "a"})
                    for _ in range(rng.randint(1, 3))
                ]
                messages.append(assistant(None, *calls))
                messages += [result(str(rng.random())) for _ in calls]
            messages += [assistant(f"answer {rng.random()}"), user("and?")]
        assert await replay(recorded(*messages[:-1], tools=())) == ""


async def test_replay_says_where_a_recording_cannot_be_played() -> None:
    call = assistant(None, ("weather", {"city": "Oslo"}))
    assert "ends at message 1" in await replay(recorded(user("?"), assistant("a"), assistant("b")))
    assert "ends at message 2" in await replay(recorded(user("?"), call, assistant("b")))


async def test_an_episode_that_keeps_to_its_recording_is_judged() -> None:
    says = [tool_call("weather", city="Oslo", unit="C"), "4  DEGREES."]
    episode = await run_agent(CassetteEnvironment, OSLO, engine=says, reward=cassette)
    assert episode.reward == 1.0
    assert episode.outcome.success
    assert episode.outcome.metrics == {"left_recording": 0.0, "recorded_calls": 1.0}


async def test_a_wrong_answer_is_a_zero() -> None:
    episode = await run_agent(CassetteEnvironment, OSLO, engine=["9 degrees."], reward=cassette)
    assert episode.reward == 0.0
    assert episode.outcome.metrics == {"left_recording": 0.0}


async def test_an_episode_that_leaves_its_recording_abstains() -> None:
    says = [tool_call("weather", city="Oslo"), tool_call("weather", city="Rome"), "never asked"]
    episode = await run_agent(CassetteEnvironment, OSLO, engine=says, reward=cassette)
    assert len(episode.turns) == 2
    assert episode.outcome.kind is OutcomeKind.ABSTAIN
    assert episode.outcome.metrics == {"left_recording": 1.0, "recorded_calls": 0.5}


async def test_an_episode_that_comes_back_is_judged_if_the_model_may_go_on() -> None:
    says = [tool_call("weather", city="Rome"), tool_call("weather", city="Oslo"), "4 degrees."]
    episode = await run_agent(Answering, OSLO, engine=says, reward=cassette)
    assert episode.reward == 1.0
    assert episode.outcome.metrics == {"left_recording": 1.0, "recorded_calls": 0.5}
    assert json.dumps(UNSEEN) in json.dumps(
        [message.get("content") for message in episode.messages]
    )


async def test_thanks_at_the_end_of_a_recording_are_not_played() -> None:
    """Playing them, the model would have to repeat its answer, and a wrong answer would get a second try."""
    thanked = recorded(user("2 + 2?"), assistant("4"), user("Thanks!"))
    episode = await run_agent(CassetteEnvironment, thanked, engine=["4"], reward=cassette)
    assert (len(episode.turns), episode.reward) == (1, 1.0)
    assert await replay(thanked) == ""


@pytest.mark.parametrize(
    "end",
    [[], [result("4")], [result("4"), {**assistant("It is fo"), "weight": 0}]],
    ids=["at the call", "at its result", "in the answer"],
)
async def test_nothing_is_right_where_a_recording_breaks_off(end: list[Message]) -> None:
    broken = recorded(user("?"), assistant(None, ("weather", {"city": "Oslo"})), *end)
    for says in ("", "It is fo"):
        episode = await run_agent(CassetteEnvironment, broken, engine=[says], reward=cassette)
        assert episode.outcome.kind is OutcomeKind.ABSTAIN


async def test_a_call_of_the_opening_does_not_answer_a_later_one() -> None:
    ask = assistant(None, ("order", {"id": 7}))
    opening = [user("Where?"), {**ask, "weight": 0}, result("packed")]
    context = {**assistant("It is packed."), "weight": 0}
    later = [user("And now?"), ask, result("shipped"), assistant("It is shipped.")]
    assert await replay(recorded(*opening, context, *later, tools=())) == ""


async def test_calls_that_share_an_id_get_their_results_in_order() -> None:
    calls = assistant(None, ("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}))
    task = recorded(user("?"), calls, result("4"), result("20"), assistant("Rome."))
    for message in task.data["messages"]:
        for call in message.get("tool_calls") or ():
            call["id"] = "weather"
        if message["role"] == "tool":
            message["tool_call_id"] = "weather"
    assert await replay(task) == ""
    results = Recording.of(task).results
    assert list(results.values()) == [("4",), ("20",)]


async def test_the_package_passes_the_checks_of_plugins(tmp_path: Path) -> None:
    await check_plugin("areal-sdk-cassettes", tasks=write(tmp_path, OSLO))


def write(folder: Path, task: Task) -> Path:
    """A file with the row of the task."""
    (rows := folder / "rows.jsonl").write_text(json.dumps(dict(task.data)) + "\n")
    return rows
