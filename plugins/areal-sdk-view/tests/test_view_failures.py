"""Groups of failures: what makes two endings alike, how a group is named, and what a large run costs."""

import random
from collections import Counter
from pathlib import Path

import pytest

from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.testing import RecordedRun
from areal_sdk.types import ErrorKind, FinishReason
from areal_sdk_view.answers import failures
from areal_sdk_view.answers.endings import NO_TEXT, Ending, normalised
from areal_sdk_view.answers.likeness import cluster, in_common
from areal_sdk_view.library import OpenRun


def ending(
    *, error: str = "", tool: str = "", calls: str = "", finish: str = "", answer: str = ""
) -> Ending:
    return (normalised(error), normalised(tool), calls, finish, normalised(answer))


def names_of(counts: Counter[Ending]) -> list[tuple[int, dict[str, str]]]:
    groups = [{one: counts[one] for one in group} for group in cluster(counts)]
    return [(sum(group.values()), in_common(group)) for group in groups]


COUNTS = Counter(
    [ending(error=f"agent: KeyError 'city{n}' (agent.py:31)") for n in range(40)]
    + [ending(error=f"agent: ValueError: no date in {word} (agent.py:55)") for word in "abcd"]
    + [
        ending(tool=f"OperationalError: no such column: {name}", calls=calls, finish="length")
        for name in ("age", "id", "sum")
        for calls in ("query → query → query", "list → query → query")
    ]
    + [ending(calls="search → read → submit", answer=f"The answer is {n}.") for n in range(4)]
    + [ending(calls="search → search → search", finish="a limit of the run")] * 3
)


def test_endings_that_are_alike_are_one_group_named_by_what_they_have_in_common() -> None:
    found = {tuple(name.items()): num for num, name in names_of(COUNTS)}
    assert found == {
        (("error", "agent: KeyError … (agent.py:#)"),): 40,
        (("error", "agent: ValueError: no date in … (agent.py:#)"),): 4,
        (
            ("tool error", "OperationalError: no such column: …"),
            ("last calls", "… → query → query"),
            ("finish", "length"),
        ): 6,
        (("last calls", "search → read → submit"), ("last answer", "The answer is #.")): 4,
        (("last calls", "search → search → search"), ("finish", "a limit of the run")): 3,
    }


def test_the_groups_do_not_depend_on_the_order_of_the_endings() -> None:
    shuffled = list(COUNTS.items())
    random.Random(0).shuffle(shuffled)
    assert names_of(Counter(dict(shuffled))) == names_of(COUNTS)


def test_what_all_failures_have_in_common_does_not_make_them_alike() -> None:
    said = ("Rome it is", "perhaps the moon", "nobody can know")
    found = cluster(Counter(ending(calls="search → submit", answer=one) for one in said))
    assert len(found) == 3


@pytest.mark.parametrize("group", [[ending()], [ending(answer="a"), ending(answer="b")]])
def test_a_group_that_has_nothing_in_common_has_no_name(group: list[Ending]) -> None:
    assert in_common(dict.fromkeys(group, 1)) == {}


def fail(number: int, *, tool: str, dropped: str = "truncated") -> Episode:
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    first = Turn((1,), (2,), (-0.5,), (0,), {"role": "assistant", "tool_calls": [call]})
    second = Turn(
        (3,),
        (4,),
        (-0.5,),
        (0,),
        {"role": "assistant", "content": ""},
        ({"role": "tool", "tool_call_id": "c", "content": f"line one\n{tool}\nbye"},),
        finish_reason=FinishReason.LENGTH,
    )
    outcome = Outcome.scored(0.0)
    return Episode(f"{dropped}-{number}", Task(f"t-{number}"), (first, second), outcome)


def opened(run: RecordedRun) -> OpenRun:
    run.close()
    found = OpenRun(run.path)
    found.refresh()
    return found


def test_the_error_of_a_tool_the_calls_and_the_finish_are_read_from_the_episodes(
    tmp_path: Path,
) -> None:
    run = RecordedRun(tmp_path / "run")
    for number in range(4):
        error = f"FileNotFoundError: '{number}.txt'" if number % 2 else f"denied: /data/{number}"
        run.drop(fail(number, tool=error), "truncated", version=number)
    answer = failures.group(opened(run), {})
    common = {"last calls": "run", "finish": "length", "last answer": NO_TEXT}
    assert [(group["num"], group["name"], group["over"]) for group in answer["groups"]] in (
        [
            (2, {"tool error": "FileNotFoundError: …", **common}, [0, 1, 0, 1]),
            (2, {"tool error": "denied: …", **common}, [1, 0, 1, 0]),
        ],
        [
            (2, {"tool error": "denied: …", **common}, [1, 0, 1, 0]),
            (2, {"tool error": "FileNotFoundError: …", **common}, [0, 1, 0, 1]),
        ],
    )


def test_of_a_kind_with_many_episodes_some_are_read_and_the_size_of_a_group_is_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MAX_READ", 8)
    run = RecordedRun(tmp_path / "run")
    for number in range(80):
        error = "TypeError: x" if number % 2 else "denied"
        run.drop(fail(number, tool=error), "truncated", version=number)
    failed = Outcome.failed(ErrorKind.AGENT, "agent: KeyError 'x'")
    run.drop(Episode("bad", Task("t"), (), failed), "error_agent")
    followed = opened(run)
    answer = failures.group(followed, {})
    assert len(followed.endings) == 8 + 1
    assert answer["num_failed"] == 81
    one, other, last = answer["groups"]
    assert (one["num"] + other["num"], last["num"]) == (80, 1)
    assert (one["is_estimate"], other["is_estimate"], last["is_estimate"]) == (True, True, False)
    assert 10 * len(failures.members_of(followed, one["id"])) == one["num"]


def test_small_groups_of_a_kind_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "RARE", 0.3)
    run = RecordedRun(tmp_path / "run")
    for number, error in enumerate(["TypeError: x"] * 6 + ["denied", "refused"]):
        run.drop(fail(number, tool=error), "truncated")
    rare = failures.group(opened(run), {})["groups"][1]
    assert (rare["num"], rare["num_endings"], rare["is_rare"], rare["name"]) == (2, 2, True, {})


def test_endings_of_random_text_are_one_group_beside_those_that_come_again(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run")
    texts = [f"{chr(0x4E00 + 7 * number)}{chr(0x5E00 + 11 * number)}" for number in range(60)]
    for number, text in enumerate(["denied"] * 8 + texts):
        run.drop(fail(number, tool=f"error {text}"), "truncated")
    answer = failures.group(opened(run), {})
    assert answer["num_groups"] <= failures.MAX_NAMED + 1
    assert {(one["num"], one["is_rare"]) for one in answer["groups"]} == {(8, False), (60, True)}


def test_a_run_without_the_split_train_shows_the_failures_of_the_split_that_it_has(
    tmp_path: Path,
) -> None:
    run = RecordedRun(tmp_path / "run")
    for number, reward in enumerate((0.0, 1.0)):
        run.measure(Episode(f"e-{number}", Task("t"), (), Outcome.scored(reward)))
    answer = failures.group(opened(run), {})
    assert (answer["split"], answer["num_failed"]) == ("eval", 1)
