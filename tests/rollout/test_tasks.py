"""Order, epochs, what is consumed, and seeds."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.seeds import stable_seed
from areal_sdk.rollout.tasks import Draw, TaskSource
from areal_sdk.types import Task
from tests.rollout.simulation import tasks


def draw_all(source: TaskSource) -> list[Draw]:
    return list(iter(source.next, None))


def test_every_task_comes_once_an_epoch_in_another_order_each_time() -> None:
    draws = draw_all(TaskSource(tasks(20), epochs=2, seed=1))
    first, second = draws[:20], draws[20:]
    assert {d.task.id for d in first} == {d.task.id for d in second} == {t.id for t in tasks(20)}
    assert [d.task.id for d in first] != [d.task.id for d in second]
    assert [d.epoch for d in draws] == [0] * 20 + [1] * 20


def test_the_order_depends_on_the_seed_alone() -> None:
    one, same = (draw_all(TaskSource(tasks(20), epochs=1, seed=1)) for _ in range(2))
    other = draw_all(TaskSource(tasks(20), epochs=1, seed=2))
    assert one == same
    assert one != other
    unshuffled = draw_all(TaskSource(tasks(20), epochs=1, shuffle=False))
    assert [d.task for d in unshuffled] == tasks(20)


def test_what_was_in_flight_is_issued_again_and_what_was_consumed_is_not() -> None:
    source = TaskSource(tasks(4), epochs=2)
    draws = [source.next() for _ in range(6)]
    done = [draws[0], draws[2], draws[5]]
    for draw in done:
        assert draw is not None
        source.consume(draw.key)
    resumed = TaskSource(tasks(4), epochs=2)
    resumed.restore(source.state())
    rest = draw_all(resumed)
    whole = draw_all(TaskSource(tasks(4), epochs=2))
    assert rest == [draw for draw in whole if draw not in done]


@given(st.lists(st.integers(0, 11), unique=True))
def test_a_restored_source_issues_exactly_the_rest(consumed: list[int]) -> None:
    whole = draw_all(TaskSource(tasks(4), epochs=3))
    source = TaskSource(tasks(4), epochs=3)
    for index in consumed:
        source.consume(whole[index].key)
    resumed = TaskSource(tasks(4), epochs=3)
    resumed.restore(source.state())
    assert draw_all(resumed) == [d for i, d in enumerate(whole) if i not in consumed]


def test_a_consumed_epoch_leaves_nothing_to_remember() -> None:
    source = TaskSource(tasks(3))
    for _ in range(3000):
        draw = source.next()
        assert draw is not None
        source.consume(draw.key)
    assert source.state() == {"first_epoch": 1000, "consumed": {}}


def test_no_tasks_and_repeated_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        TaskSource([])
    with pytest.raises(ConfigError, match="two tasks have the id 'a'"):
        TaskSource([Task("a"), Task("b"), Task("a")])


def test_seeds_do_not_depend_on_the_process() -> None:
    code = "from areal_sdk.rollout.seeds import stable_seed; print(stable_seed(7, 'é', 1, 2))"
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
