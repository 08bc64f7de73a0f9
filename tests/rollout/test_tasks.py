"""Order, epochs, what is consumed, and seeds."""

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.tasks import IssuedTask, TaskSource, TaskStream, stable_seed
from areal_sdk.types import Task
from tests.rollout.simulation import tasks


def issue_all(source: TaskSource) -> list[IssuedTask]:
    return list(iter(source.next, None))


def test_every_task_comes_once_an_epoch_in_another_order_each_time() -> None:
    issued = issue_all(TaskSource(tasks(20), epochs=2, seed=1))
    first, second = issued[:20], issued[20:]
    assert {d.task.id for d in first} == {d.task.id for d in second} == {t.id for t in tasks(20)}
    assert [d.task.id for d in first] != [d.task.id for d in second]
    assert [d.epoch for d in issued] == [0] * 20 + [1] * 20


def test_the_order_depends_on_the_seed_alone() -> None:
    one, same = (issue_all(TaskSource(tasks(20), epochs=1, seed=1)) for _ in range(2))
    other = issue_all(TaskSource(tasks(20), epochs=1, seed=2))
    assert one == same
    assert one != other
    unshuffled = issue_all(TaskSource(tasks(20), epochs=1, shuffle=False))
    assert [d.task for d in unshuffled] == tasks(20)


def test_what_was_in_flight_is_issued_again_and_what_was_consumed_is_not() -> None:
    source = TaskSource(tasks(4), epochs=2)
    issued = [source.next() for _ in range(6)]
    done = [issued[0], issued[2], issued[5]]
    for task in done:
        assert task is not None
        source.consume(task.key)
    resumed = TaskSource(tasks(4), epochs=2)
    resumed.restore(source.state())
    rest = issue_all(resumed)
    whole = issue_all(TaskSource(tasks(4), epochs=2))
    assert rest == [task for task in whole if task not in done]


def test_tasks_whose_episodes_go_on_come_first_in_their_epoch_and_keep_their_places() -> None:
    whole = issue_all(TaskSource(tasks(6), epochs=2))
    late, next_epoch, consumed = whole[4], whole[9], whole[1]
    gone: list[object] = []
    first = frozenset(one.key for one in (late, next_epoch, consumed))
    source = TaskSource(tasks(6), epochs=2, first=first, on_consumed=gone.append)
    state = TaskSource(tasks(6), epochs=2)
    state.consume(consumed.key)
    source.restore(state.state())
    found = issue_all(source)
    assert [found[0], found[5]] == [late, next_epoch]
    assert sorted(found, key=lambda one: one.order) == [one for one in whole if one != consumed]
    source.consume(late.key)
    assert gone == [late.key]


@given(st.lists(st.integers(0, 11), unique=True))
def test_a_restored_source_issues_exactly_the_rest(consumed: list[int]) -> None:
    whole = issue_all(TaskSource(tasks(4), epochs=3))
    source = TaskSource(tasks(4), epochs=3)
    for index in consumed:
        source.consume(whole[index].key)
    resumed = TaskSource(tasks(4), epochs=3)
    resumed.restore(source.state())
    assert issue_all(resumed) == [d for i, d in enumerate(whole) if i not in consumed]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_restored_epoch_that_ends_early_repeats_nothing(is_stream: bool) -> None:
    def source() -> TaskSource:
        known = TaskStream(iter(tasks(9)), again=lambda: iter(tasks(9)), what="tasks", size=5)
        return TaskSource(known if is_stream else tasks(5))

    first, restored = source(), source()
    epoch = [first.next() for _ in range(5)]
    for issued in (epoch[0], epoch[1], epoch[3], epoch[4]):
        assert issued is not None
        first.consume(issued.key)
    restored.restore(first.state())
    last = restored.next()
    assert last is not None
    assert last == epoch[2]
    restored.consume(last.key)  # before the next task is asked for
    after = restored.next()
    assert after is not None
    assert after.epoch == 1


def test_a_consumed_epoch_leaves_nothing_to_remember() -> None:
    source = TaskSource(tasks(3))
    for _ in range(3000):
        task = source.next()
        assert task is not None
        source.consume(task.key)
    assert source.state() == {"first_epoch": 1000, "consumed": {}}


def test_what_a_checkpoint_holds_does_not_grow_with_what_was_consumed() -> None:
    source = TaskSource(tasks(20_000))
    in_flight = [source.next() for _ in range(8)]
    for _ in range(15_000):
        task = source.next()
        assert task is not None
        source.consume(task.key)
    consumed = source.state()["consumed"]
    assert isinstance(consumed, dict)
    assert consumed["0"]["below"] == 0, "the first is in flight"
    for task in in_flight:
        assert task is not None
        source.consume(task.key)
    assert len(orjson.dumps(source.state())) < 200


def test_a_checkpoint_that_names_what_was_consumed_is_read_as_ever() -> None:
    whole = issue_all(TaskSource(tasks(4), epochs=3))
    done = [task for task in whole if task.epoch == 1][1:3]
    resumed = TaskSource(tasks(4), epochs=3)
    resumed.restore({"first_epoch": 1, "consumed": {"1": sorted(d.task.id for d in done)}})
    assert issue_all(resumed) == [task for task in whole[4:] if task not in done]


@pytest.mark.parametrize("change", [{"tasks": tasks(5)}, {"seed": 1}, {"shuffle": False}])
def test_where_the_order_is_another_the_epoch_begins_again(
    change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    source = TaskSource(tasks(4))
    for _ in range(6):
        task = source.next()
        assert task is not None
        source.consume(task.key)
    resumed = TaskSource(**{"tasks": tasks(4), "epochs": 2, **change})
    resumed.restore(source.state())
    assert {task.key for task in issue_all(resumed)} == {
        (1, task.id) for task in change.get("tasks", tasks(4))
    }
    assert "the epoch that it was in begins again" in caplog.text


class Endless:
    """Counts what is read of it."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.num_read = 0
        self.num_passes = 0

    def begin(self) -> Iterator[Task]:
        self.num_passes += 1
        for number in itertools.count() if self.last is None else range(self.last):
            self.num_read += 1
            yield Task(f"t{number}")

    def stream(self, size: int = 10) -> TaskStream:
        return TaskStream(self.begin(), again=self.begin, what="tasks('train')", size=size)


def test_a_stream_is_read_as_it_is_needed_and_shuffled_by_the_block() -> None:
    items = Endless()
    source = TaskSource(items.stream(), seed=3)
    issued = []
    for number in range(1, 101):
        task = source.next()
        assert task is not None
        issued.append(task)
        assert items.num_read <= number + 20
    for block in range(10):
        ids = [task.task.id for task in issued[10 * block : 10 * block + 10]]
        assert sorted(ids) == sorted(f"t{10 * block + n}" for n in range(10))
        assert {task.epoch for task in issued[10 * block : 10 * block + 10]} == {block}
        assert ids != sorted(ids)
    again = TaskSource(Endless().stream(), seed=3)
    assert [again.next() for _ in range(100)] == issued


@given(st.lists(st.integers(0, 39), unique=True), st.integers(0, 40))
def test_a_restored_stream_issues_exactly_the_rest(consumed: list[int], num_issued: int) -> None:
    def first(source: TaskSource, count: int) -> list[IssuedTask]:
        return [task for task in (source.next() for _ in range(count)) if task is not None]

    whole = first(TaskSource(Endless().stream()), 80)
    source = TaskSource(Endless().stream())
    issued = first(source, num_issued)
    done = [issued[index] for index in consumed if index < num_issued]
    for task in done:
        source.consume(task.key)
    resumed = TaskSource(Endless().stream())
    resumed.restore(orjson.loads(orjson.dumps(source.state())))
    rest = [task for task in whole if task not in done][:40]
    assert first(resumed, len(rest)) == rest
    for task in rest:  # and goes on being resumable
        resumed.consume(task.key)
    third = TaskSource(Endless().stream())
    third.restore(resumed.state())
    following = third.next()
    assert following is not None
    assert following.key not in {task.key for task in [*done, *rest]}


def test_a_stream_that_ends_is_read_again_for_as_many_epochs_as_were_asked_for() -> None:
    items = Endless(last=25)
    issued = issue_all(TaskSource(items.stream(), epochs=2))
    assert Counter(task.task.id for task in issued) == Counter(
        {f"t{number}": 2 for number in range(25)}
    )
    assert [task.epoch for task in issued] == [0] * 10 + [1] * 10 + [2] * 5 + [3] * 10 + [
        4
    ] * 10 + [5] * 5
    assert items.num_passes == 2


def test_a_stream_that_cannot_be_read_again_says_so_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    items = Endless(last=25).begin()
    source = TaskSource(TaskStream(items, again=lambda: items, what="what was given", size=10))
    assert len(issue_all(source)) == 25
    assert "what was given cannot be read again" in caplog.text


def test_a_stream_that_repeats_an_id_within_a_block_is_refused() -> None:
    items = iter([*tasks(12), Task("t11"), *tasks(40)[20:]])
    source = TaskSource(TaskStream(items, again=lambda: iter(()), what="tasks('train')", size=10))
    with pytest.raises(
        ConfigError, match=r"tasks\('train'\): two tasks among 10 have the id 't11'"
    ):
        issue_all(source)


def test_a_stream_that_gives_other_tasks_after_a_resume_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = TaskSource(Endless().stream())
    for _ in range(15):
        task = source.next()
        assert task is not None
        source.consume(task.key)
    others = (Task(f"other{number}") for number in itertools.count())
    resumed = TaskSource(TaskStream(others, again=lambda: others, what="tasks", size=10))
    resumed.restore(source.state())
    task = resumed.next()
    assert task is not None
    assert (task.epoch, task.position) == (1, 0)
    assert "the epoch that it was in begins again" in caplog.text


def test_a_checkpoint_of_a_stream_and_one_of_known_tasks_are_not_confused() -> None:
    stream, known = TaskSource(Endless().stream()), TaskSource(tasks(4))
    with pytest.raises(ConfigError, match="return them as a list to resume"):
        TaskSource(Endless().stream()).restore(known.state())
    with pytest.raises(ConfigError, match="resume it with the tasks that it began with"):
        TaskSource(tasks(4)).restore(stream.state())


def test_no_tasks_and_repeated_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        TaskSource([])
    with pytest.raises(ConfigError, match="two tasks have the id 'a'"):
        TaskSource([Task("a"), Task("b"), Task("a")])


def test_seeds_do_not_depend_on_the_process() -> None:
    code = "from areal_sdk.rollout.tasks import stable_seed; print(stable_seed(7, 'é', 1, 2))"
    seeds = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert seeds == {str(stable_seed(7, "é", 1, 2))}


@given(
    st.lists(st.one_of(st.integers(), st.text()), max_size=4),
    st.lists(st.one_of(st.integers(), st.text()), max_size=4),
)
def test_different_names_give_different_seeds_of_63_bits(
    one: list[int | str], other: list[int | str]
) -> None:
    assert 0 <= stable_seed(*one) < 2**63
    typed = [[(type(part), part) for part in parts] for parts in (one, other)]
    assert (stable_seed(*one) == stable_seed(*other)) == (typed[0] == typed[1])
