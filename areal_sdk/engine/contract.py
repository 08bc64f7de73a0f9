"""The inference engine contract. Subclass `InferenceEngine` to add a backend."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from areal_sdk.engine.requests import GenerateChunk, GenerateRequest, GenerateResult, collect
from areal_sdk.errors import EngineError
from areal_sdk.types import UpdateContents, WeightUpdate

if TYPE_CHECKING:
    from areal_sdk.config import EngineSection, PolicySection, Section
    from areal_sdk.launcher import Launcher


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The model that an engine serves. Known once `start` has returned."""

    model: str
    """Directory with config.json and the tokenizer."""
    max_context: int
    """Maximum number of tokens of prompt and output together."""
    vocab_size: int
    stop_tokens: tuple[int, ...]
    """The model's own end-of-turn tokens; generation stops after sampling one."""
    constrains_json: bool = False
    """Whether the engine honours `GenerateRequest.json_schema`."""
    shares_device: bool = False
    """Whether engine and trainer share a device: the run then calls `release_memory` before a step, `resume_memory`
    after."""
    policies: Mapping[str, bool] = field(default_factory=dict)
    """Policies by name, if there are several: whether each is trained. `GenerateRequest.policy` chooses one."""
    restart_s: float = 0.0
    """Seconds that the engine may be away while it starts a server again by itself. They are
    added to the deadline of new weights."""

    def check_tokens(self, request: GenerateRequest) -> None:
        """Raise EngineError for a request without tokens, or with tokens that the model does not have."""
        if not request.tokens:
            raise EngineError("the prompt is empty: send at least one token")
        if request.max_new_tokens < 1:
            raise EngineError(f"max_new_tokens is {request.max_new_tokens}: ask for at least 1")
        biased = request.sampling.logit_bias
        for name, tokens in (("the prompt", request.tokens), ("logit_bias", biased)):
            if bad := [token for token in tokens if not 0 <= token < self.vocab_size]:
                raise EngineError(
                    f"{name} holds token {bad[0]}, the model has {self.vocab_size}: "
                    "is this another model's tokenizer?"
                )


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """The end of an engine that had been started."""

    reason: str
    """Text as in "the engine was killed by SIGKILL"."""
    log_path: Path


@dataclass(frozen=True, slots=True)
class EngineEntrance:
    """The way by which further processes sample from a running engine (`rollout.nodes`, `serve.processes`)."""

    client: str
    """`package.module:Class` or `file.py::Class` of an `EngineClient`."""
    state: Mapping[str, Any]
    """The first state that `EngineClient.told` gets, as JSON."""


Tell = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Tells every client of an engine a new state. Returns when they know it, or when some do not answer."""


class InferenceEngine(ABC):
    """Takes tokens and returns sampled tokens. It knows nothing about chat, rewards or training.

    Contract, checked by `areal_sdk.testing.check_engine`:

    * logprobs are log softmax(logits / T) over the full vocabulary, even if top-p or top-k restrict
      the choice;
    * `versions` come from the sampler for each token, never from a clock read afterwards;
    * `update_weights` does not wait for requests in flight; these continue with the new weights;
    * closing a stream early frees its slot;
    * failures raise `EngineError`; a prompt that cannot fit raises `ContextOverflowError`.

    An engine that can die overrides `is_alive`, `died` and `restart`; the run then starts it again. An
    engine that restarts its own servers does not override them.
    """

    is_repeatable: ClassVar[bool] = False
    """Whether the engine can sample the same tokens twice (`run.deterministic`)."""
    is_shareable: ClassVar[bool] = False
    """Whether other processes can sample from the engine too. It then has `open_entrance`, which
    `rollout.nodes` and `serve.processes` need."""
    accepts: ClassVar[tuple[UpdateContents, ...]] = ("all",)
    """The kinds of updates that the engine accepts. An engine that accepts `changed` loads less if an adapter is trained."""

    @classmethod  # noqa: B027 - optional
    def check_installed(cls) -> None:
        """Raise MissingExtraError if a package that the engine needs is missing."""

    @classmethod  # noqa: B027 - optional
    def check_model(cls, directory: Path) -> None:
        """Raise ConfigError if the engine could not serve the model in `directory`."""

    @abstractmethod
    async def start(self) -> None:
        """Make the engine ready; afterwards `info` and `version` are valid."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo: ...

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that new tokens are sampled with."""

    @abstractmethod
    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample, chunk by chunk. The last chunk carries the finish reason."""

    @abstractmethod
    async def update_weights(self, update: WeightUpdate) -> None:
        """Serve `update.version` from the next token on."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release resources. Safe to call twice."""

    @property
    def pid(self) -> int | None:
        """Id of the process on this machine that computes, for accounts of CPU time; None if there are several."""
        return None

    @property
    def is_alive(self) -> bool:
        """Whether the engine lives: False from its death until `restart` has returned."""
        return True

    async def died(self) -> EngineDeath:
        """Wait until the started engine has died. Most engines never die, and then it waits for ever."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    async def restart(self) -> None:
        """Start a dead engine again, with the weights and the version it had."""
        raise EngineError(f"{type(self).__name__} cannot be started again")

    def observe_outages(self, tell: Callable[[bool], None]) -> None:  # noqa: B027 - optional
        """Have `tell` called when the engine can sample nothing, because a part of it restarts, and when it can
        again."""

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        """Let other processes sample too. Processes of other machines reach this one at `host`.

        `tell` is called whenever the state of the entrance changes.
        """
        raise EngineError(f"{type(self).__name__} cannot be sampled from by other processes")

    async def pause(self) -> None:  # noqa: B027 - optional
        """Hold all generation, requests in flight included, until `resume`."""

    async def resume(self) -> None:  # noqa: B027 - optional
        """Continue what `pause` held."""

    async def release_memory(self) -> None:
        """Hold all generation and leave the device to the trainer; weights cannot be updated."""
        await self.pause()

    async def resume_memory(self) -> None:  # noqa: B027 - optional
        """Take the device back. Generation stays held until `resume`, for new weights to come in."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """The whole completion."""
        return await collect(self.stream(request))


class EngineClient(InferenceEngine):
    """The engine of the main process, for a rollout node or a gateway process that samples from it.

    The main process updates, pauses and restarts the engine. While it holds generation, this client holds it too.
    """

    def __init__(self, info: EngineInfo, *, name: str) -> None:
        """`name` is the name of the process that samples."""
        self._info = info
        self.name = name

    @abstractmethod
    async def told(self, state: Mapping[str, Any]) -> None:
        """Take a new state of the engine from the main process. The first one comes before any request."""

    async def start(self) -> None:
        """Do nothing: the engine runs already."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def update_weights(self, update: WeightUpdate) -> None:
        raise EngineError("a rollout node has no say about weights: the main process has")

    async def pause(self) -> None:
        raise EngineError("a rollout node cannot hold the engine: the main process can")

    async def resume(self) -> None:
        raise EngineError("a rollout node cannot hold the engine: the main process can")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of a run's engine."""

    section: "EngineSection"
    options: Mapping[str, Any]
    """The table `[engine.NAME]`, not validated yet."""
    model_dir: Path
    log_dir: Path
    deterministic: bool = False
    launcher: "Launcher | None" = None
    """Launcher that places the processes of the engine; None: they run on this machine. The run owns and closes it."""
    is_placed: bool = False
    """Whether the launcher may place processes on other machines (`cluster.launcher`)."""
    find: "Callable[[str], type[InferenceEngine]] | None" = None
    """Function that finds an engine by name, for an engine that passes requests on to others."""
    policies: "Mapping[str, PolicySection]" = field(default_factory=dict)
    """The tables `[policy.NAME]`, for an engine that serves several. `frozen` is a directory by now, or an address."""
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables of processes that the engine starts itself, by process: they name the planned GPUs."""


class ConfiguredEngine(InferenceEngine):
    """An engine that reads the settings of `[engine]`.

    Other engines get `model_dir`, `log_dir` and `[engine.NAME]` as keyword arguments; a setting in
    `[engine]` is refused for them.
    """

    table: "ClassVar[type[Section] | None]" = None
    """Section class of `[engine.NAME]`, if the engine has settings of its own."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: EngineSettings) -> InferenceEngine:
        """The engine, not started. ConfigError if it could not keep a setting. Also called to
        check a configuration: it must leave nothing behind."""

    @classmethod
    def gpus(cls, section: "EngineSection", options: Mapping[str, Any]) -> Mapping[str, int] | None:
        """The number of GPUs of each process that the engine starts, by name; 0 for a sender, which needs only some
        room on a GPU that no other of these processes has. None if the settings name the GPUs."""
        return {}
