"""Requests, tokens, metrics and weights of several policies: each reaches its own policy, and no other."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from areal_sdk import ConfigError, EngineError, GenerateRequest
from areal_sdk.engine import ConfiguredEngine, EngineSettings
from areal_sdk.errors import CheckpointError
from areal_sdk.settings import SettingsChecker
from areal_sdk.testing import ScriptedEngine
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import Credit, TrajectoryGroup
from areal_sdk.types import WeightUpdate
from areal_sdk_policies.engine import PolicyEngine
from areal_sdk_policies.shares import least_idle, merged, merged_credit, split
from areal_sdk_policies.trainer import PolicyTrainer

MakeGroup = Callable[..., TrajectoryGroup]


@pytest.fixture
async def engine() -> AsyncIterator[PolicyEngine]:
    made = {name: ScriptedEngine(name) for name in ("planner", "coder", "rival")}
    engine = PolicyEngine(made, frozen=["rival"])
    await engine.start()
    yield engine
    await engine.aclose()


def asked(policy: str) -> GenerateRequest:
    return GenerateRequest((1,), 32, policy=policy)


async def test_a_request_reaches_the_policy_that_it_names(engine: PolicyEngine) -> None:
    for name in ("planner", "coder", "rival"):
        result = await engine.generate(asked(name))
        assert bytes(result.tokens[:-1]).decode() == name
    with pytest.raises(EngineError, match="unknown policy 'planer'; known: planner, coder, rival"):
        await engine.generate(asked("planer"))


async def test_new_weights_reach_the_trained_policies_alone(engine: PolicyEngine) -> None:
    assert engine.info.policies == {"planner": True, "coder": True, "rival": False}
    await engine.update_weights(
        WeightUpdate(1, None, by_policy={"coder": WeightUpdate(1, "coder.safetensors")})
    )
    paths = {n: [u.path for u in e.updates] for n, e in engine._engines.items()}  # type: ignore[attr-defined]
    assert paths == {"planner": [None], "coder": ["coder.safetensors"], "rival": []}
    versions = [set((await engine.generate(asked(n))).versions) for n in engine.info.policies]
    assert versions == [{1}, {1}, {0}]
    assert engine.version == 1


async def test_weights_of_one_model_or_of_a_frozen_policy_are_refused(engine: PolicyEngine) -> None:
    for update in (
        WeightUpdate(1, "all.safetensors"),
        WeightUpdate(1, None, by_policy={"rival": WeightUpdate(1, "rival.safetensors")}),
    ):
        with pytest.raises(EngineError, match="are trained"):
            await engine.update_weights(update)


async def test_a_stream_that_is_closed_early_frees_its_slot(engine: PolicyEngine) -> None:
    async with aclosing(engine.stream(asked("coder"))) as chunks:  # type: ignore[type-var]
        await anext(chunks)
    assert engine._engines["coder"].num_active == 0  # type: ignore[attr-defined]


async def test_an_outage_of_one_policy_is_one_of_the_engine(engine: PolicyEngine) -> None:
    told: list[bool] = []
    tells: dict[str, Callable[[bool], None]] = {}
    for name, inner in engine._engines.items():
        inner.observe_outages = lambda tell, name=name: tells.__setitem__(name, tell)  # type: ignore[method-assign, misc]
    engine.observe_outages(told.append)
    tells["coder"](True)
    tells["rival"](True)
    tells["coder"](False)
    tells["rival"](False)
    assert told == [True, True, True, False]


def test_each_policy_gets_its_own_trajectories_and_no_group_without_any(
    make_group: MakeGroup,
) -> None:
    both, alone = make_group(0, "planner", "coder"), make_group(1, "planner")
    shares = split([both, alone], ["planner", "coder"])
    assert [group.id for group in shares["planner"]] == ["g0", "g1"]
    assert [group.id for group in shares["coder"]] == ["g0"]
    assert [t.episode_id for t in shares["coder"][0].trajectories] == ["0-0", "0-1", "0-2", "0-3"]
    own = [replace(t, policy="") for t in both.trajectories if t.policy == "coder"]
    assert [*shares["coder"][0].trajectories] == own


async def test_a_checkpoint_that_cannot_be_written_says_which_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="step-1 was not saved, earlier checkpoints stay"):
        await PolicyTrainer({}).save(tmp_path / "file" / "step-1", {})


def test_tokens_of_an_unknown_or_frozen_policy_are_refused(make_group: MakeGroup) -> None:
    with pytest.raises(ValueError, match="tokens of \\['rival'\\]; trained: planner, coder"):
        split([make_group(0, "planner", "rival")], ["planner", "coder"])


def test_metrics_are_told_of_each_policy_and_of_all() -> None:
    """The loss by hand: (3 * 1 + 1 * 5) / 4 = 2. Counts add up, and the largest ratio stays."""
    planner = {"num_trained": 3.0, "loss": 1.0, "ratio_max": 1.5, "kl": 0.25}
    coder = {"num_trained": 1.0, "loss": 5.0, "ratio_max": 2.5}
    whole = merged({"planner": planner, "coder": coder})
    assert whole["num_trained"] == 4.0
    assert whole["loss"] == 2.0
    assert whole["ratio_max"] == 2.5
    assert whole["kl"] == 0.25
    assert (whole["planner/loss"], whole["coder/loss"]) == (1.0, 5.0)


def test_the_credit_of_an_episode_is_that_of_the_policy_of_each_turn() -> None:
    planner = {"e": Credit(1.0, (1.0, None, 1.0))}
    coder = {"e": Credit(-2.0, (None, -2.0))}
    assert merged_credit([planner, coder]) == {"e": Credit(-0.5, (1.0, -2.0, 1.0))}


def test_a_group_is_idle_only_if_no_policy_learns_from_it() -> None:
    assert least_idle({IdleGroups.EQUAL_REWARDS}) is IdleGroups.EQUAL_REWARDS
    assert least_idle({IdleGroups.EQUAL_REWARDS, IdleGroups.NONE}) is IdleGroups.NONE


@dataclass(frozen=True)
class Engine:
    """The setting `engine.name`."""

    name: str

    @property
    def kind(self) -> str:
        return "sglang" if "://" in self.name else self.name

    def model_copy(self, *, update: Mapping[str, str]) -> "Engine":
        return replace(self, **update)


@dataclass(frozen=True)
class Policy:
    """The setting `frozen` of a policy."""

    frozen: str | None


class Served(ConfiguredEngine, ScriptedEngine):
    """A script in place of any engine, which tells from which settings it was made."""

    settings: EngineSettings

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "Served":
        made = cls("ok")
        made.settings = settings
        return made


def engine_of(tmp_path: Path, **policies: str | None) -> PolicyEngine:
    """The engine of a run on a model of three tokens. `policies` are frozen there, or trained."""
    write_model(tmp_path / "model")
    return PolicyEngine.from_settings(
        EngineSettings(
            cast(Any, Engine("local")),
            {},
            tmp_path / "model",
            tmp_path / "logs",
            find=lambda name: Served,
            policies=cast(Any, {name: Policy(frozen) for name, frozen in policies.items()}),
        )
    )


def write_model(directory: Path, *tokens: str) -> None:
    directory.mkdir()
    vocab = {token: place for place, token in enumerate(tokens or "abc")}
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))


def test_a_frozen_policy_has_its_own_weights_or_servers(tmp_path: Path) -> None:
    write_model(tmp_path / "past")
    address = "http://127.0.0.1:30000"
    engine = engine_of(tmp_path, coder=None, past=str(tmp_path / "past"), other=address)
    made = {n: e.settings for n, e in engine._engines.items()}  # type: ignore[attr-defined]
    where = {name: (s.model_dir.name, s.log_dir.name) for name, s in made.items()}
    assert where == {
        "coder": ("model", "coder"),
        "past": ("past", "past"),
        "other": ("model", "other"),
    }
    assert [s.section.name for s in made.values()] == ["local", "local", address]
    assert not any(s.policies for s in made.values())


def test_a_frozen_policy_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "past", "x", "y")
    with pytest.raises(ConfigError, match="has another tokenizer than the model"):
        engine_of(tmp_path, coder=None, past=str(tmp_path / "past"))


def test_settings_that_train_nothing_are_refused() -> None:
    refused: Mapping[str, Mapping[str, Any]] = {
        "every .* is frozen": {"policy.past.frozen": "tiny"},
        "a frozen policy learns nothing": {
            "policy.coder.learning_rate": 0.1,
            "policy.past.frozen": "tiny",
            "policy.past.learning_rate": 0.1,
        },
        "exclude each other": {"policy.coder.learning_rate": 0.1, "cluster.launcher": "ray"},
    }
    for why, settings in refused.items():
        with pytest.raises(ConfigError, match=why):
            SettingsChecker().check(settings)
