"""Every hook a plugin may implement, on one page. Hooks register or observe; they never do work.

A registered item is the object itself or a string `"package.module:attribute"`, resolved on first
use, so that listing plugins imports nothing heavy.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

from areal_sdk.types import Episode, Task, WeightUpdate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import click

    from areal_sdk.agent import AgentForm, AgentLike
    from areal_sdk.engine import InferenceEngine
    from areal_sdk.environment import Environment
    from areal_sdk.launcher import Launcher
    from areal_sdk.reward import RewardFn
    from areal_sdk.routes import Backend, BackendSettings, Route
    from areal_sdk.tool_calls import ToolFormat
    from areal_sdk.trainer import Trainer

PROJECT = "areal_sdk"
"""The pluggy project name and the entry point group that plugin distributions declare."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Claims `name` for an item. A name has one owner: a second claim is an error."""

    def __call__(self, name: str, item: T_contra | str) -> None: ...


@hookspec
def register_rewards(register: "Register[RewardFn]") -> None:
    """`register(name, fn)` for each reward function: `--reward name`, `[reward.name]`."""


@hookspec
def register_environments(register: "Register[type[Environment]]") -> None:
    """`register(name, cls)` for each environment: `--env name`, `[env.name]`."""


@hookspec
def register_agents(register: "Register[AgentLike | type]") -> None:
    """`register(name, agent)` for each agent or workflow: `areal-sdk train name`."""


@hookspec
def register_agent_forms(register: "Register[AgentForm]") -> None:
    """`register(name, form)` for each form of agents that are no `Agent`, such as those of another framework."""


@hookspec
def register_engines(register: "Register[type[InferenceEngine]]") -> None:
    """`register(name, cls)` for each inference engine: `--engine name`."""


@hookspec
def register_trainers(register: "Register[Callable[..., Trainer]]") -> None:
    """`register(name, make)` for each trainer: `trainer.name = "..."`, options in `[trainer.name]`."""


@hookspec
def register_launchers(register: "Register[Callable[..., Awaitable[Launcher]]]") -> None:
    """`register(name, open)` for each way to place processes on machines: `--launcher name`. `open` is called as `await
    open(setup, **options)`: `setup` is a `LauncherSetup`, `options` come from `[cluster.NAME]`."""


@hookspec
def register_datasets(register: "Register[Callable[[str], Iterable[Task]]]") -> None:
    """`register(name, fn)` where `fn(split)` yields tasks: `--tasks name`, options in `[tasks.name]`."""


@hookspec
def register_algorithms(register: "Register[Callable[..., object]]") -> None:
    """`register(name, preset)` for each algorithm: `algorithm.name = "..."`, `[algorithm.name]`."""


@hookspec
def register_tool_formats(register: "Register[ToolFormat]") -> None:
    """`register(name, tool_format)` for each form in which models write tool calls: `gateway.tool_format`. The gateway
    recognises a registered format in a chat template that uses it."""


@hookspec
def register_routes(register: "Register[Route]") -> None:
    """`register(name, route)` for each route below `/v1` that the gateway of a model serves too."""


@hookspec
def register_backends(register: "Register[Callable[[BackendSettings], Backend]]") -> None:
    """`register(name, make)` for each backend that answers in place of a model: `serve --upstream name`."""


@hookspec
def register_observers(register: "Register[type]") -> None:
    """`register(name, cls)` for each observer: `--observer name`, options in `[observer.name]`. `cls` is a
    class with `on_*` hooks as methods; a run that asks for the observer makes one instance."""


@hookspec
def register_commands(group: "click.Group") -> None:
    """Add subcommands to `areal-sdk`; import inside the command, not at the top."""


@hookspec
def on_run_start(name: str, run_dir: str, settings: Mapping[str, Any]) -> None:
    """A run begins, or goes on after a resume. `name` is that of its directory; `settings` are those of
    its `config.toml`: resolved, without secrets."""


@hookspec
def on_episode(episode: Episode, dropped: str) -> None:
    """An episode of training ended. `dropped` is the ledger's reason if the episode will not be trained, else empty. An
    accepted episode may still become too old, or its group too small.

    Observe only; exceptions are reported, not raised.
    """


@hookspec
def on_step(step: int, metrics: Mapping[str, float]) -> None:
    """An optimiser step finished. `metrics` are the numbers of its line in `metrics.jsonl`."""


@hookspec
def on_eval_episode(name: str, split: str, episode: Episode) -> None:
    """An episode of an evaluation ended. `on_evaluation` follows later, with the same `name` and `split`."""


@hookspec
def on_evaluation(name: str, split: str, step: int, metrics: Mapping[str, float]) -> None:
    """Held-out tasks of a run were measured. `name` is `before`, `step-20` or `after`; `step` made the weights that
    were measured. `metrics`: `success`, `reward`, `tasks`, and the same for each source."""


@hookspec
def on_weights(update: WeightUpdate) -> None:
    """The engine confirmed a new version. After a warm-up that is version 0."""


@hookspec
def on_run_end(run_dir: str, summary: Mapping[str, float]) -> None:
    """The run is over, whatever the reason; its directory is complete.

    `summary`: `steps`, `version`, `train_seconds`, `elapsed_s`, `saved_step`, `ledger/trained` and the
    like, and what was measured, as in `before/eval/success` and `after/eval/reward`.
    """
