"""The trainer contract. Subclass `Trainer` to bring another way to learn.

All names that a trainer needs beside torch are here, in `areal_sdk.algorithms` and in `areal_sdk.trajectory`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.options import validate_options
from areal_sdk.process.user_code import load_user_object
from areal_sdk.types import UpdateContents, WeightUpdate

if TYPE_CHECKING:
    from areal_sdk.config import PolicySection, RunSection, TrainerSection
    from areal_sdk.launcher import Launcher
    from areal_sdk.telemetry.token_log import StepTokens
    from areal_sdk.trajectory import Credit, TrajectoryGroup  # numpy: `areal-sdk --help` needs none

__all__ = [
    "Demonstration",
    "IdleGroups",
    "Learning",
    "PresetSpec",
    "Trainer",
    "TrainerInfo",
    "TrainerSetup",
]

JSON = Any


@dataclass(frozen=True, slots=True)
class PresetSpec:
    """An algorithm and the options of its table. Each rank finds and checks both again."""

    reference: str = "areal_sdk.algorithms.presets:grpo"
    """The preset: `"module:function"`, or `"path/to/file.py::function"` in a user's file."""
    options: dict[str, JSON] = field(default_factory=dict)
    """The options as the user wrote them."""
    name: str = ""
    """The setting `algorithm.name`, for errors."""

    def make(self) -> object:
        """The preset's result: an `areal_sdk.algorithms.Algorithm`, unless a plugin's preset returns another kind.

        ConfigError for options that the preset does not have.
        """
        preset = load_user_object(self.reference)
        return preset(**validate_options(preset, self.options, table=f"algorithm.{self.name}"))


class Learning(StrEnum):
    """The source from which the steps of a run learn."""

    EPISODES = "episodes"
    """`step` is called with groups of trajectories. A supervised warm-up may call `learn` before."""
    DATA = "data"
    """`learn` and `score` are called with sequences of tokens: fine-tuning."""
    REWARDS = "rewards"
    """The same as `DATA` for a reward model: a sequence has a reward in place of a logprob, read at its last token, in
    `learn` and in `score`. It then does not matter which of its tokens are trained."""


@dataclass(frozen=True, slots=True)
class TrainerSetup:
    """The facts of a run that its trainer is made from. `areal_sdk.testing.trainer_setup` makes one."""

    model_dir: Path
    """A transformers checkpoint: config.json, safetensors, tokenizer."""
    trainer: "TrainerSection"
    """The settings of `[trainer]`. `first_learning_rate` is a number also where `learning_rate` is `"auto"`."""
    run: "RunSection"
    """The settings of `[run]`, among them `seed`, `steps` and `deterministic`."""
    preset: PresetSpec
    """The algorithm that `algorithm.name` names."""
    publish_dtype: str
    """The type of the weights that the engine samples with: `bfloat16` or `float32`."""
    log_dir: Path
    """A directory of the run directory: every machine of the run has it at the same path."""
    say: Callable[[str], None]
    """Shows a line to the user."""
    learning: Learning = Learning.EPISODES
    """The source from which the steps of the run learn."""
    launcher: "Launcher | None" = None
    """Places the ranks; None: on this machine. It belongs to the run, which closes it."""
    engine_accepts: tuple[UpdateContents, ...] = ("all",)
    """The kinds of updates that the trainer may publish."""
    policies: "Mapping[str, PolicySection]" = field(default_factory=dict)
    """The tables `[policy.NAME]`, for a trainer of several policies."""
    make: "Callable[[TrainerSetup], Trainer] | None" = None
    """Makes a trainer of one policy, of the kind that `trainer.name` names: a trainer of several policies needs one for each."""
    only_exports: bool = False
    """The trainer will be asked for `export_checkpoint` alone: `model_dir` may then hold no weights."""


class IdleGroups(StrEnum):
    """The groups from which an algorithm learns nothing. Dynamic sampling replaces them in a batch."""

    EQUAL_REWARDS = "equal_rewards"
    """All siblings got the same reward."""
    EQUAL_EPISODES = "equal_episodes"
    """All siblings got the same reward in equally many turns: with a discount, being quicker teaches something."""
    NONE = "none"
    """Every group may teach: siblings are not all that an episode is compared with."""


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """A trainer as it was started. Known once `start` has returned."""

    num_parameters: int = 0
    device: str = "cpu"
    learns_alone: bool = True
    """The algorithm learns from an episode without siblings."""
    idle_groups: IdleGroups = IdleGroups.EQUAL_REWARDS
    policies: tuple[str, ...] = ()
    """Names of the policies that the trainer tells apart (`Trajectory.policy`). Empty: it trains one policy."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A sequence to learn from: its tokens, and which of them are trained."""

    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    weight: float = 1.0
    """Weight of each trained token. Below 0 the token becomes less likely."""

    @property
    def num_trained(self) -> int:
        return sum(self.loss_mask)


class Trainer(ABC):
    """Turns groups of trajectories into new weights.

    A plugin registers a subclass, or a function, that is called as `make(setup, **options)`: `setup` is a
    `TrainerSetup`; `options` come from `[trainer.NAME]`. Making a trainer must be cheap, since `--dry-run` makes one
    too. It raises `ConfigError` for a model or a setting that the trainer cannot use. `start` loads the model.

    Contract:

    * The caller makes one call at a time. Each call happens on every rank in the same order, so that
      all ranks enter the same collectives. A caller that is cancelled does not cancel the call: the
      trainer finishes the call, and then begins the next one.
    * The weights have no version of their own. The caller counts: the step that makes version v + 1
      starts from v, and no token of its groups has a version above v.
    * Failures raise an `ArealError`. After a failure of `step`, `learn`, `load` or `roll_back` the ranks may
      disagree: the caller closes the trainer and starts another one from a checkpoint.
    * The trainer shares the event loop with the gateway. Code that computes for longer than some
      milliseconds must run in a process or a thread.
    """

    notices: Sequence[str] = ()
    """Remarks of the latest step for the user."""
    credit: "Mapping[str, Credit]" = MappingProxyType({})
    """Credit of the episodes of the latest step, by id. Shown to people; a trainer may leave it out."""
    tokens: "StepTokens | None" = None
    """The record of each token in the latest step. The run keeps it for people; a trainer may leave it out."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model. `info` is valid afterwards."""

    @property
    @abstractmethod
    def info(self) -> TrainerInfo: ...

    @abstractmethod
    async def step(
        self, groups: "Sequence[TrajectoryGroup]", *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        """Learn from `groups`, starting from `version`; return the metrics of the step.

        The loop reads `num_updates` (0: the weights are unchanged), `num_trained` (tokens with
        a loss term), `num_skipped_updates` (updates left out because the gradient was not finite, 0 if
        missing), `num_tokens` and `loss`. Every metric is written to metrics.jsonl as `train/NAME`.
        """

    @abstractmethod
    async def publish(self, version: int) -> WeightUpdate:
        """Return the current weights as `version`, in a file that the engine can read.

        The last two published versions stay readable: the one that the engine serves, and the one on
        its way. The caller publishes again only after the engine has confirmed the version before.
        A `path` of None says that the weights equal those of the version before.
        """

    @abstractmethod
    async def save(self, directory: Path, extra: Mapping[str, JSON]) -> None:
        """Write a checkpoint, which appears at `directory` whole or not at all.

        The checkpoint holds all that the next step depends on: weights, optimiser moments, schedules,
        baselines, random generators, and `extra`. A run that loads it and gets the same groups takes
        the same steps, bit by bit where `run.deterministic` is set.
        """

    async def begin_save(
        self, directory: Path, extra: Mapping[str, JSON]
    ) -> "asyncio.Future[None]":
        """Begin the checkpoint that `save` writes; the future ends when it is written.

        The next call may come at once: the checkpoint holds the state of this moment. The caller begins
        no other checkpoint before this one has ended. Unless a subclass can write beside its steps,
        the checkpoint is written when this returns.
        """
        await self.save(directory, extra)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    @abstractmethod
    async def load(self, directory: Path) -> Mapping[str, JSON]:
        """Continue from the checkpoint in `directory`; return the `extra` it was saved with."""

    async def roll_back(self, directory: Path) -> None:
        """Go back to the checkpoint in `directory`, because later steps lost what the model had learnt.

        The numbers of steps go on from the present one. A subclass should take smaller steps from now on; this
        default only loads the checkpoint.
        """
        await self.load(directory)

    @abstractmethod
    async def export(self, directory: Path) -> None:
        """Write a model directory that transformers and engines load; replace one that is there."""

    def export_checkpoint(self, checkpoint: Path, directory: Path) -> None:
        """Write the weights of `checkpoint` as `export` does, with a trainer that was not started.

        Called outside an event loop; blocks. Unless a subclass knows a cheaper way, the trainer starts,
        loads the checkpoint and exports.
        """

        async def start_and_export() -> None:
            try:
                await self.start()
                await self.load(checkpoint)
                await self.export(directory)
            finally:
                await self.aclose()

        asyncio.run(start_and_export())

    @abstractmethod
    async def aclose(self) -> None:
        """End the processes and remove the published files. Safe to call twice."""

    async def learn(
        self,
        rows: Sequence[Demonstration],
        *,
        learning_rate: float,
        divisor: float | None = None,
        timeout_s: float = 600.0,
    ) -> Mapping[str, float]:
        """Take one step that raises the sum of weight * logprob over all trained tokens / `divisor`.

        The default divisor is the number of trained tokens, so that `loss` is the mean over them. Returns `loss`,
        `num_updates` and other metrics. Supervised warm-up and fine-tuning call this and, to compare sequences, `score`
        first: the objective turns the scores into weights of the sequences.
        """
        raise ConfigError(
            f"{type(self).__name__} does not learn from data: it defines no learn; leave sft out"
        )

    async def score(
        self, rows: Sequence[Demonstration], *, timeout_s: float = 600.0
    ) -> Sequence[float]:
        """The sum of the logprobs of each row's trained tokens, under the current weights.

        If `TrainerSetup.learning` is `REWARDS`, the reward of each row.
        """
        raise ConfigError(
            f"{type(self).__name__} does not score data: it defines no score, which pairs need; use "
            "areal-sdk sft, or another trainer"
        )

    async def release_memory(self) -> None:  # noqa: B027 - optional
        """Leave device memory that no step keeps (caches) to an engine on the same device.

        Weights and moments stay. The next call takes the memory back by itself.
        """

    @property
    def is_alive(self) -> bool:
        """Whether every process of the trainer runs."""
        return True

    async def died(self) -> ArealError:
        """Wait until a process of the trainer ends; return the error that names the process.

        The loop awaits this beside all calls, and ends the run with the error. A call in progress
        fails at once as well. A trainer without processes waits for ever.
        """
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    @property
    def pids(self) -> Mapping[str, int]:
        """The processes on this machine that compute, by name: the run measures their CPU time."""
        return {}
