"""An algorithm that compares siblings is refused where there are none, before anything starts."""

import re
from pathlib import Path

import pytest

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.api import check, train
from areal_sdk.types import Task

AGENT = Path(__file__).with_name("vowels.py")


def test_grpo_on_groups_of_one_names_the_algorithm_that_learns_from_them(tmp_path: Path) -> None:
    async def agent(task: object, context: object) -> float:
        return 1.0

    with pytest.raises(ConfigError, match=r"grpo.*rollout\.group_size = 1.*running_baseline"):
        train(
            agent,
            model="tiny",
            tasks=[Task("one")],
            rollout={"group_size": 1},
            run={"dir": tmp_path / "runs"},
        )
    assert not (tmp_path / "runs").exists()


def test_live_callers_without_siblings_are_told_of_groups_before_anything_starts() -> None:
    live = {"model": "tiny", "serve": {"learn": True}, "algorithm": {"name": "grpo"}}
    with pytest.raises(ConfigError, match="POST /control/sessions"):
        check(parse_config(live))


def test_running_baseline_takes_groups_of_one() -> None:
    alone = {"rollout": {"group_size": 1}, "algorithm": {"name": "running_baseline"}}
    check(parse_config({"model": "tiny", "agent": str(AGENT), **alone}))


NEED_SIBLINGS = {
    "grpo",
    "drgrpo",
    "dapo",
    "gspo",
    "rloo",
    "reinforce++_baseline",
    "sapo",
    "cispo",
    "m2po",
    "litepo",
    "naive_ppo",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_that_compares_siblings_is_refused_where_there_are_none(
    name: str,
) -> None:
    config = parse_config(
        {
            "model": "tiny",
            "agent": str(AGENT),
            "rollout": {"group_size": 1},
            "algorithm": {"name": name},
        }
    )
    if name in NEED_SIBLINGS:
        with pytest.raises(ConfigError, match=re.escape(repr(name))):
            check(config)
    else:
        check(config)


@pytest.mark.parametrize("name", ["running_baseline", "grpo"])
def test_refilling_batches_says_so_where_every_group_teaches(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = {"dynamic_sampling": True}
    settings = {"agent": str(AGENT), "model": "tiny", "rollout": rollout}
    check(parse_config({**settings, "algorithm": {"name": name}}))
    has_no_effect = "rollout.dynamic_sampling = True changes nothing" in caplog.text
    assert has_no_effect == (name == "running_baseline")
