"""A plugin's options are checked like our own settings."""

import functools
from collections.abc import Callable
from typing import Annotated, Literal

import pytest
from pydantic import Field

from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError, PluginError
from areal_sdk.plugins import list_options, validate_options


def judge(  # type: ignore[no-untyped-def]
    episode: object,
    *,
    model: str,
    scale: Annotated[float, Field(gt=0)] = 1.0,
    mode: Literal["strict", "lenient"] = "strict",
    untyped=None,
    hook: Callable[[], int] | None = None,
) -> float:
    return scale


class World:
    def __init__(self, size: int = 3, *, names: tuple[str, ...] = ()) -> None:
        self.size = size


def check(**options: object) -> dict[str, object]:
    return validate_options(judge, options, table="reward.judge", skip=1)


def test_options_are_converted_to_what_is_declared() -> None:
    assert check(model="m", scale=2) == {"model": "m", "scale": 2.0}
    assert validate_options(World, {"names": ["a"]}, table="env.w") == {"names": ("a",)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, r"\[reward.judge\] needs model \(str\)"),
        (
            {"model": "m", "scael": 1},
            r"\[reward.judge\] has no option 'scael': did you mean 'scale'",
        ),
        ({"model": "m", "zzz": 1}, r"has no option 'zzz'; known: model, scale, mode"),
        (
            {"model": "m", "scale": -1},
            r"\[reward.judge\] scale = -1: input should be greater than 0",
        ),
        ({"model": 3}, r"\[reward.judge\] model = 3: input should be a valid string"),
        ({"model": "m", "mode": "x"}, r"mode = 'x': input should be 'strict' or 'lenient'"),
    ],
)
def test_a_bad_option_is_named_with_its_table(options: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check(**options)


def test_a_reward_of_another_library_is_told_what_a_reward_takes() -> None:
    def two(prompt: str, completion: str) -> float:
        return 1.0

    with pytest.raises(ConfigError, match=r"needs completion.*a reward takes \(episode, \*, opt"):
        validate_options(two, {}, table="reward.two", skip=1)


def test_something_that_takes_no_options_says_so() -> None:
    with pytest.raises(ConfigError, match="has no option 'a': it takes none"):
        validate_options(Environment, {"a": 1}, table="env.x")


def test_an_untyped_option_takes_any_value() -> None:
    assert check(model="m", untyped=[1, {"a": 2}])["untyped"] == [1, {"a": 2}]


def test_an_option_that_no_configuration_can_hold_blames_the_plugin() -> None:
    def reward(episode: object, *, engine: "World") -> float:
        return 0.0

    reward.__annotations__["engine"] = World
    with pytest.raises(PluginError, match="engine cannot be set from a configuration"):
        validate_options(reward, {"engine": 1}, table="reward.r", skip=1)


def test_annotations_that_do_not_resolve_blame_the_plugin() -> None:
    def reward(episode: object, *, x: "Nowhere") -> float:  # type: ignore[name-defined]  # noqa: F821
        return 0.0

    with pytest.raises(PluginError, match=r"cannot read the options of .*reward: .*Nowhere"):
        list_options(reward, skip=1)


def test_partials_and_callable_objects_declare_options_too() -> None:
    class Scorer:
        def __call__(self, episode: object, *, bonus: float = 0.0) -> float:
            return bonus

    assert [o.name for o in list_options(Scorer(), skip=1)] == ["bonus"]
    partial = functools.partial(judge, model="m")
    assert validate_options(partial, {"scale": 4}, table="r", skip=1)["scale"] == 4.0


def test_options_are_described_for_listings() -> None:
    options = {o.name: o for o in list_options(judge, skip=1)}
    assert options["model"].is_required
    assert options["mode"].type_name == "Literal['strict', 'lenient']"
    assert options["scale"].default == 1.0
