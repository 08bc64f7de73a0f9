"""Shares of a mixture follow success, are repeatable, and go on after a resume."""

import json
from collections import Counter
from collections.abc import Callable

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.mixture import Part, mixed
from areal_sdk.rollout.groups import Rejection, ScoredEpisode
from areal_sdk.rollout.tasks import TaskSource, TaskStream
from areal_sdk.rollout.tasks.curriculum import NUM_FAILED, Curriculum
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.types import Episode, Task
from tests.rollout.simulation import Run, simulate

EVERY = 8


def curriculum(**weights: float) -> Curriculum:
    return Curriculum(weights, target=0.5, floor=0.1, every=EVERY)


def observe(found: Curriculum, label: str, *, successes: int, episodes: int) -> None:
    for number in range(episodes):
        task = Task(f"{label}/{number}")
        found.observe(task, epoch=0, is_success=number < successes)
        found.consume((0, task.id))
    found.end_step()


def test_a_source_that_is_solved_or_hopeless_gives_way() -> None:
    found = curriculum(easy=1.0, right=1.0, hard=2.0)
    assert found.shares(0) == [0.25, 0.25, 0.5]  # nothing is known
    observe(found, "easy", successes=4, episodes=4)
    observe(found, "right", successes=2, episodes=4)
    assert found.shares(0) == [0.25, 0.25, 0.5]  # a block keeps its shares
    # easy: 0.1 (the floor); right: 1; hard: 2 (unknown)
    assert found.shares(1) == pytest.approx([0.1 / 3.1, 1 / 3.1, 2 / 3.1], abs=1e-6)
    observe(found, "hard", successes=1, episodes=4)
    # hard: 2 * (1 - 0.25 / 0.5) = 1
    assert found.shares(2) == pytest.approx([0.1 / 2.1, 1 / 2.1, 1 / 2.1], abs=1e-6)
    assert found.metrics() == {
        "source/easy/share": pytest.approx(0.1 / 2.1, abs=1e-6),
        "source/easy/recent_success": 1.0,
        "source/right/share": pytest.approx(1 / 2.1, abs=1e-6),
        "source/right/recent_success": 0.5,
        "source/hard/share": pytest.approx(1 / 2.1, abs=1e-6),
        "source/hard/recent_success": 0.25,
    }


def test_what_was_long_ago_counts_less_and_a_source_that_is_not_drawn_keeps_its_rate() -> None:
    found = curriculum(a=1.0, b=1.0)
    found.shares(0)
    observe(found, "a", successes=4, episodes=4)
    found.shares(1)
    observe(found, "a", successes=0, episodes=4)
    found.shares(2)
    assert found.metrics()["source/a/recent_success"] == pytest.approx(2 / 6)
    shares = found.shares(2)
    assert found.shares(30) == shares != [0.5, 0.5]
    observe(found, "a", successes=4, episodes=4)
    found.shares(31)
    assert found.metrics()["source/a/recent_success"] == pytest.approx(5 / 7)


@pytest.mark.parametrize(
    ("num_each", "floor", "every", "group"), [(20, 0.05, 64, 4), (20, 0.1, 64, 8), (4, 0.1, 16, 1)]
)
def test_hopeless_sources_get_their_floor_however_seldom_they_are_drawn(
    num_each: int, floor: float, every: int, group: int
) -> None:
    weights = {f"{kind}{n}": 1.0 for kind in ("good", "bad") for n in range(num_each)}
    found = Curriculum(weights, target=0.5, floor=floor, every=every)
    lead, drawn = dict.fromkeys(weights, 0.0), Counter[str]()
    for block in range(200):
        for number in range(every):
            for label, share in zip(weights, found.shares(block), strict=True):
                lead[label] += share
            label = max(lead, key=lambda one: lead[one])
            lead[label] -= 1.0
            drawn[label[:-1].rstrip("0123456789")] += block >= 20
            task = Task(f"{label}/{number}")
            for sibling in range(group):
                is_right = label.startswith("good") and (sibling + number + block) % 2 == 0
                found.observe(task, epoch=block, is_success=is_right)
            found.consume((block, task.id))
        found.end_step()
    assert drawn["bad"] / drawn.total() < 1.5 * floor / (1.0 + floor)


def test_the_state_of_an_older_run_is_read() -> None:
    found = curriculum(a=1.0, b=1.0)
    recent = {"a": [0.0, 0.25], "b": [0.0, 0.0]}
    fresh = {"a": [0.0, 0.0], "b": [1.0, 2.0]}
    found.restore({"every": 4, "shares": [[0.5, 0.5]], "recent": recent, "fresh": fresh})
    assert found.shares(0) == [0.5, 0.5]
    assert found.shares(1) == pytest.approx([0.1 / 1.1, 1 / 1.1], abs=1e-6)


def test_names_with_a_slash_are_told_apart() -> None:
    found = Curriculum({"math": 1.0, "math/hard": 1.0}, target=0.5, floor=0.1, every=EVERY)
    found.shares(0)
    observe(found, "math/hard", successes=1, episodes=2)
    found.shares(1)
    assert "source/math/recent_success" not in found.metrics()
    assert found.metrics()["source/math/hard/recent_success"] == 0.5


def source(led_by: Curriculum) -> TaskSource:
    def part(label: str) -> Part:
        return Part(label, 1.0, lambda: [Task(str(n)) for n in range(5)], is_finite=True)

    def begin() -> object:
        return mixed([part("easy"), part("hard")], seed=3, shuffle=True, curriculum=led_by)

    make: Callable[[], object] = begin
    stream = TaskStream(
        make(),  # type: ignore[arg-type]
        again=make,  # type: ignore[arg-type]
        what="mixture",
        size=led_by.every,
        curriculum=led_by,
    )
    return TaskSource(stream, seed=3)


def play(tasks: TaskSource, led_by: Curriculum, number: int) -> list[str]:
    """Issue, score and consume tasks: `easy` is always solved, `hard` half of the time."""
    ids = []
    for _ in range(number):
        issued = tasks.next()
        assert issued is not None
        name = issued.task.id
        ids.append(name)
        for sibling in range(4):
            is_success = name.startswith("easy/") or sibling < 2
            led_by.observe(issued.task, epoch=issued.epoch, is_success=is_success)
        tasks.consume(issued.key)
        led_by.end_step()
    return ids


def test_a_resumed_run_is_issued_what_it_would_have_been() -> None:
    whole = curriculum(easy=1.0, hard=1.0)
    ids = play(source(whole), whole, 120)
    assert Counter(name.split("/")[0] for name in ids[:8]) == {"easy": 4, "hard": 4}
    assert Counter(name.split("/")[0] for name in ids[-80:])["hard"] > 68
    for stop in (1, 8, 9, 50, 77):
        began = curriculum(easy=1.0, hard=1.0)
        first = source(began)
        assert play(first, began, stop) == ids[:stop]
        state = first.state()
        other = Curriculum({"easy": 1.0, "hard": 1.0}, target=0.5, floor=0.1, every=EVERY)
        resumed = source(other)
        resumed.restore(state)
        assert play(resumed, other, 120 - stop) == ids[stop:]


def test_a_checkpoint_holds_the_curriculum_of_its_step_alone() -> None:
    led_by = curriculum(easy=1.0, hard=1.0)
    tasks = source(led_by)
    play(tasks, led_by, 5)
    state = tasks.state()
    asked = json.dumps(state)
    issued = tasks.next()
    assert issued is not None
    led_by.observe(issued.task, epoch=issued.epoch, is_success=True)  # in flight: is played again
    assert json.dumps(tasks.state()) == asked
    play(tasks, led_by, 20)
    assert json.dumps(state) == asked
    assert json.dumps(tasks.state()) != asked


def issued_in_a_run(*, clock: int) -> list[str]:
    """The tasks of a deterministic run whose episodes take as long as `clock` says, and may fail."""
    led_by = curriculum(easy=1.0, hard=1.0)
    tasks, ids = source(led_by), list[str]()

    def seen(episode: Episode, triaged: ScoredEpisode | Rejection) -> None:
        ids.append(episode.id)
        if isinstance(triaged, ScoredEpisode):
            is_success = episode.task.id.startswith("easy/") or triaged.success
            led_by.observe(episode.task, epoch=episode.epoch, is_success=is_success)

    run = Run(
        batch=8,
        eta=0,
        source=tasks,
        in_order=True,
        runner={"clock_seed": clock, "failure_rate": 0.2},
        dispatcher={"on_episode": seen},
    )
    simulate(run.steps(30))
    return sorted(ids)


def test_which_episode_ends_first_does_not_move_a_share() -> None:
    first = issued_in_a_run(clock=0)
    assert len({name.split("/")[0] for name in first}) == 2
    for clock in range(1, 7):
        assert issued_in_a_run(clock=clock) == first


def test_another_mixture_than_that_of_the_checkpoint_is_refused() -> None:
    began = curriculum(easy=1.0, hard=1.0)
    first = source(began)
    play(first, began, 3)
    with pytest.raises(ConfigError, match="of the sources easy, hard, and the mixture has other"):
        source(curriculum(other=1.0)).restore(first.state())


def test_a_source_that_only_fails_keeps_its_share_and_is_named_once() -> None:
    found = curriculum(broken=1.0, right=1.0)
    for number in range(NUM_FAILED):
        assert found.notices() == ()
        task = Task(f"broken/{number}")
        found.reject(task, epoch=0, reason=DropReason.STALE)
        found.reject(task, epoch=0, reason=DropReason.ERROR_AGENT)
        found.consume((0, task.id))
        observe(found, "right", successes=1, episodes=2)
    (told,) = found.notices()
    assert told.startswith(f"{NUM_FAILED} tasks of broken in a row failed (error_agent)")
    assert found.notices() == ()
    found.shares(0)
    assert found.shares(1) == [0.5, 0.5]


@pytest.mark.parametrize("reason", [None, *DropReason])
def test_only_failures_are_called_failures(reason: DropReason | None) -> None:
    """A task without a reason had siblings that were stopped on the way."""
    found = curriculum(long=1.0, right=1.0)
    for number in range(2 * NUM_FAILED):
        task = Task(f"long/{number}")
        if reason is not None:
            found.reject(task, epoch=0, reason=reason)
        found.consume((0, task.id))
    is_failure = reason is not None and reason.value.startswith("error_")
    is_failure &= reason is not DropReason.ERROR_INFRASTRUCTURE  # of the engine, not of the source
    assert bool(found.notices()) == is_failure


def test_a_verdict_ends_a_row_of_failures() -> None:
    found = curriculum(flaky=1.0, right=1.0)
    for number in range(2 * NUM_FAILED):
        task = Task(f"flaky/{number}")
        found.reject(task, epoch=1, reason=DropReason.ERROR_REWARD)
        if number % 4 == 0:
            found.observe(task, epoch=1, is_success=True)
        found.consume((1, task.id))
    assert found.notices() == ()
