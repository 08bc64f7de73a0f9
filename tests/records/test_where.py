"""Conditions on episodes: what they mean, and what they refuse."""

import re

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.records.selection import Selection
from areal_sdk.records.where import FIELDS, MAX_LENGTH, parse_condition
from areal_sdk.telemetry import DropReason, EpisodeSummary, RunDir
from tests.docs.blocks import ROOT

ONE = EpisodeSummary(
    "train-1.0", "a-1", "train-1", "train", 1.0, 3, 0.25, False, None, None, 2, 9, 1.5, "f", 0, 1,
    text="It is Paris.", step=4, advantage=-0.5,
)  # fmt: skip
FAILED = EpisodeSummary(
    "e", "t", "", "eval", 1.0, 3, None, None, DropReason.ERROR_AGENT, "boom", 0, 0, 1.5, "f", 0, 1
)


@pytest.mark.parametrize(
    ("condition", "one", "failed"),
    [
        ("reward < 0.5 and split==train", True, False),
        ("reward<0.5 or split == eval", True, True),
        ("not (split == train)", False, True),
        ("0.1 <= reward < advantage", False, False),
        ("advantage < reward", True, False),
        ("advantage == -0.5", True, False),
        ("0.2 < reward < 0.3", True, False),
        ("reward == none", False, True),
        ("reward != None", True, False),
        ("reward > -1", True, False),
        ("success", False, False),
        ("success == false", True, False),
        ("error", False, True),
        ("dropped == error_agent", False, True),
        ('"Paris" in text', True, False),
        ('"Paris" not in text', False, True),
        ("task_id == 'a-1'", True, False),
        (" step == 4 ", True, False),
    ],
)
def test_a_condition_holds_for_what_it_says(condition: str, one: bool, failed: bool) -> None:
    holds = parse_condition(condition)
    assert (holds(ONE), holds(FAILED)) == (one, failed)


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("rewrad < 0.5", "'rewrad' is no field of an episode; known: id, task_id, group"),
        ("reward < rewrad", "'rewrad' is no field"),
        ("offset > 1", "'offset' is no field"),
        ("1 < 2", "'1' is no field"),
        ("reward < '0.5'", "compares '0.5' with a number"),
        ("reward < true", "compares True with a number"),
        ("split == 3", "compares 3 with a text"),
        ("step in train", "compares step with a text"),
        ("success == 1", "compares 1 with true or false"),
        ("reward == split", "compares split with a number"),
        ("split = train", "write == to compare"),
        ("", "is not a condition"),
        ("reward <", "is not a condition"),
        ("task_id == a-1", "put other text in quotes"),
        ("task_id == a.b", "put other text in quotes"),
        ("reward is none", "compare a field"),
        ("reward + 1 > 2", "'reward \\+ 1'"),
        ("reward == 1j", "1j"),
        ("3", "'3' in a condition"),
        ("x" * (MAX_LENGTH + 1), "at most 1000"),
        ("(" * 400 + "reward" + ")" * 400, "is not a condition"),
        ("__import__('os').system('true')", "in a condition"),
        ("reward.__class__ == 1", "in a condition"),
        ("[reward for reward in (1,)]", "in a condition"),
        ("(lambda: 1)()", "in a condition"),
        ("reward == (reward := 1)", "in a condition"),
        ("f'{reward}' == text", "in a condition"),
        ("text[0] == 'I'", "in a condition"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_cure(condition: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_condition(condition)


def test_a_deep_condition_is_refused_or_read_and_never_a_crash() -> None:
    try:
        holds = parse_condition("not " * 240 + "error")
    except ConfigError:
        return
    assert not holds(ONE)


def ids(selection: Selection, run: RunDir) -> list[str]:
    return [episode.id for episode in selection.of(run)]


def test_a_selection_takes_the_newest_the_best_or_the_worst(run: RunDir) -> None:
    assert ids(Selection(2), run) == ["bad", "train-6.3"]
    assert ids(Selection(2, "best"), run) == ["train-6.3", "train-5.3"]
    assert ids(Selection(2, "worst"), run) == ["train-6.0", "train-5.0"]


def test_a_selection_takes_one_group(run: RunDir) -> None:
    assert ids(Selection(group="train-2"), run) == [f"train-2.{n}" for n in (3, 2, 1, 0)]


def test_a_selection_takes_what_meets_its_condition(run: RunDir) -> None:
    worst = Selection(2, "worst", where="reward > 0")
    assert ids(worst, run) == ["train-1.3", "train-6.1"]
    best_of_a_group = Selection(1, "best", group="train-2", where="reward < 0.4")
    assert ids(best_of_a_group, run) == ["train-2.1"]
    late = Selection(where="step == 3 and advantage > 0.1")
    assert ids(late, run) == ["train-3.3", "train-3.2"]
    assert ids(Selection(group="train-2", where="reward > 5"), run) == []


def test_an_episode_without_a_reward_is_neither_best_nor_worst(run: RunDir) -> None:
    assert len(ids(Selection(), run)) == len(ids(Selection(order="best"), run)) + 1


def test_the_docs_list_every_field() -> None:
    page = (ROOT / "docs" / "runs.md").read_text()
    table = page.partition("## Some episodes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(FIELDS)


def test_a_group_that_is_not_there_names_the_newest(run: RunDir) -> None:
    with pytest.raises(
        ConfigError, match=r"no group 'x' .*the newest are train-6, train-5, train-4"
    ):
        Selection(group="x").of(run)
