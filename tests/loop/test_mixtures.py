"""Tasks from several sources, in proportion; options of a plugin's dataset; fields by other names."""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.agent import EpisodeContext
from areal_sdk.command import given_settings
from areal_sdk.config import idle_settings, load_config, parse_config
from areal_sdk.config.tables import as_written
from areal_sdk.errors import ConfigError
from areal_sdk.loop.learning.training import RunPlan, make_plan
from areal_sdk.loop.plan.mixture import Part, mixed, with_source
from areal_sdk.loop.plan.program import load_program
from areal_sdk.plugins import load_plugins
from areal_sdk.rollout.tasks import TaskSource, TaskStream
from areal_sdk.types import Task

PLUGIN = """
from areal_sdk import Task, hookimpl

def sums(split, *, count: int = 3):
    return [Task(str(n), {"question": f"{split} {n}+1?", "answer": str(n + 1)}) for n in range(count)]

@hookimpl
def register_datasets(register):
    register("sums", sums)
"""


async def agent(task: Task, context: EpisodeContext) -> float:
    return 1.0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    rows = [{"problem": f"word {n}?", "solution": str(n)} for n in range(4)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def plan_of(
    files: Path, *, given: Mapping[str, list[Task]] | None = None, **settings: Any
) -> RunPlan:
    config = parse_config({"model": "tiny", "plugins": [str(files / "plugin.py")], **settings})
    plugins = load_plugins(files=map(Path, config.plugins))
    program = load_program(config, plugins=plugins, agent=agent).with_tasks(given or {})
    return make_plan(config, plugins=plugins, program=program)


def mixture(files: Path) -> list[dict[str, Any]]:
    words = {"tasks": str(files / "words.jsonl"), "weight": 3, "fields": {"question": "problem"}}
    return [{"tasks": "sums"}, words]


def test_a_mixture_has_its_proportions_in_every_stretch_and_goes_on(files: Path) -> None:
    plan = plan_of(files, mixture=mixture(files), tasks={"sums": {"count": 2}})
    assert isinstance(plan.train_tasks, TaskStream)
    source = TaskSource(plan.train_tasks, shuffle=False)
    issued = [found.task for found in islice(iter(source.next, None), 40) if found is not None]
    for start in (0, 13, 26):
        counts = Counter(task.source for task in issued[start : start + 8])
        assert abs(counts["words"] - 6) <= 1
        assert abs(counts["sums"] - 2) <= 1
    assert len({task.id for task in issued}) == 40
    assert {task.id for task in issued if task.source == "sums"} >= {"sums/0", "sums/1", "sums/0#2"}
    assert {task.data["question"] for task in issued} >= {"word 3?", "train 1+1?"}
    assert [task.data["question"] for task in plan.eval_tasks["eval"].tasks] == [
        "eval 0+1?",
        "eval 1+1?",
    ]


def test_training_tasks_among_the_held_out_are_told_though_a_mixture_labels_them(
    files: Path,
) -> None:
    held_out = files / "held_out.jsonl"
    rows = [{"question": f"word {n}?", "solution": str(n)} for n in range(2, 6)]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (warning,) = plan_of(files, mixture=mixture(files), eval_tasks=str(held_out)).warnings
    assert warning.startswith("eval: 2 of 4 held-out tasks are training tasks too")


def test_held_out_tasks_that_no_part_has_are_asked_for(files: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no part of the mixture has tasks for 'eval'.*eval.after"
    ):
        plan_of(files, mixture=mixture(files), tasks={"sums": {"count": 0}})
    only_words = mixture(files)[1:]
    assert plan_of(files, mixture=only_words).eval_tasks == {}


def test_fields_of_the_run_are_those_of_a_part_that_names_none(files: Path) -> None:
    words = str(files / "words.jsonl")
    own = {"tasks": words, "name": "own", "fields": {"query": "problem"}}
    plan = plan_of(files, mixture=[{"tasks": words}, own], fields={"question": "problem"})
    assert isinstance(plan.train_tasks, TaskStream)
    read = {task.source: task.data.keys() for task in plan.train_tasks.first[:2]}
    assert read["words"] == {"question", "solution", "source"}
    assert read["own"] == {"query", "solution", "source"}


GIVEN = [Task("python", {"question": "given?"})]


def test_tasks_from_python_beside_others_are_played_or_refused(files: Path) -> None:
    words = {"tasks": str(files / "words.jsonl")}
    for settings in ({"mixture": [words]}, words):
        with pytest.raises(ConfigError, match="were given from Python, and the settings name"):
            plan_of(files, given={"train": GIVEN}, **settings)
        plan = plan_of(files, given={"eval": GIVEN}, **settings)
        assert list(plan.eval_tasks["eval"].tasks) == GIVEN


def test_a_mixture_is_repeatable_and_follows_the_seed() -> None:
    parts = [Part("a", 1.0, lambda: [Task(str(n)) for n in range(9)], is_finite=True)]

    def ids(seed: int) -> list[str]:
        return [task.id for task in islice(mixed(parts, seed=seed, shuffle=True), 18)]

    assert ids(0) == ids(0) != ids(1)
    assert sorted(ids(0)[:9]) == [f"a/{n}" for n in range(9)]


def test_options_of_a_dataset_stand_in_its_table(files: Path) -> None:
    plan = plan_of(files, tasks={"name": "sums", "sums": {"count": 5}})
    assert [task.id for task in plan.train_tasks] == list("01234")  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"\[tasks.sums\] has no option 'cuont': did you mean"):
        plan_of(files, tasks={"name": "sums", "sums": {"cuont": 5}})


def test_flags_name_fields_and_options_of_tasks(files: Path) -> None:
    flags = {"tasks": "sums", "question_field": "problem", "answer_field": None}
    config = load_config(
        settings=["tasks.sums.count=5"], overrides=given_settings(None, (), (), flags)
    )
    assert (config.tasks, config.fields) == ("sums", {"question": "problem"})
    assert config.options["tasks.sums"] == {"count": 5}
    stored = as_written(config.model_dump(exclude_unset=True))
    assert stored["tasks"] == {"name": "sums", "sums": {"count": 5}}
    assert parse_config(stored) == config
    idle = parse_config({"tasks": {"name": "a.jsonl", "sums": {"count": 5}}})
    assert "[tasks.sums] changes nothing" in "".join(idle_settings(idle, engine="local"))


def test_a_curriculum_leads_the_mixture_of_two_levels_of_one_dataset(files: Path) -> None:
    levels = [
        {"tasks": "sums", "name": name, "options": {"count": number}}
        for name, number in (("few", 2), ("many", 6))
    ]
    curriculum = {"target": 0.5, "every": 12}
    stream = plan_of(files, mixture=levels, curriculum=curriculum).train_tasks
    assert isinstance(stream, TaskStream)
    assert stream.curriculum is not None
    source = TaskSource(stream)
    for issued in islice(iter(source.next, None), 36):
        assert issued is not None
        is_success = issued.task.source == "few"
        stream.curriculum.observe(issued.task, epoch=issued.epoch, is_success=is_success)
        source.consume(issued.key)
        stream.curriculum.end_step()
    shares = stream.curriculum.metrics()
    assert (
        shares["source/few/share"] == shares["source/many/share"] == 0.5
    )  # 1.0 and 0.0 are as far
    assert (shares["source/few/recent_success"], shares["source/many/recent_success"]) == (1.0, 0.0)
    assert {task.id for task in stream.first} >= {"few/1", "many/5"}
    assert "many/6" not in {task.id for task in stream.first}


def test_settings_of_a_curriculum_without_a_target_are_told_to_change_nothing() -> None:
    idle = idle_settings(parse_config({"curriculum": {"every": 8}}), engine="local")
    assert [line for line in idle if "curriculum" in line] == [
        "curriculum.every = 8 changes nothing: the shares of a mixture stay as they are without "
        "curriculum.target"
    ]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"tasks": "sums"}, "make the tasks one more"),
    "passes": ({"rollout": {"epochs": 2}}, "a mixture has no end"),
    "a weight of nothing": ({"mixture": [{"tasks": "sums", "weight": 0}]}, "mixture.0.weight"),
    "one source twice": ({"mixture": [{"tasks": "sums"}, {"tasks": "sums"}]}, "give one a name"),
    "a name inside another": (
        {"mixture": [{"tasks": "sums", "name": "a"}, {"tasks": "sums", "name": "a/hard"}]},
        "called 'a' and 'a/hard': .* such as 'a-hard'",
    ),
    "a curriculum of one": (
        {"mixture": [{"tasks": "sums"}], "curriculum": {"target": 0.5}},
        "give two or more",
    ),
    "options of a file": (
        {"mixture": [{"tasks": "words.jsonl", "options": {"a": 1}}]},
        "options are for a plugin's dataset, and words.jsonl is a file",
    ),
    "fields of no file": ({"mixture": [{"tasks": "sums", "fields": {"a": "b"}}]}, "is no file"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_mixture_can_be_is_refused(
    settings: dict[str, Any], message: str, files: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(files, **{"mixture": mixture(files), **settings})


def test_two_levels_of_one_family_are_told_apart_by_their_names() -> None:
    task = Task("1", {"family": "sums"})
    assert with_source(task, "reasoning").source == "sums"
    assert with_source(task, "easy", is_named=True).source == "easy"
    own = Task("1", {"family": "sums", "source": "textbook"})
    assert with_source(own, "easy", is_named=True).source == "textbook"


def test_a_part_of_the_mixture_that_nothing_measures_is_named(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan_of(files, mixture=mixture(files))
    assert "no held-out tasks of words: no evaluation measures this part" in caplog.text
    caplog.clear()
    measured = [mixture(files)[0], {**mixture(files)[1], "eval_tasks": "sums", "fields": {}}]
    plan_of(files, mixture=measured)
    plan_of(files, mixture=mixture(files), eval={"before": False, "after": False})
    assert "no held-out tasks" not in caplog.text
