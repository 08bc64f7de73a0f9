"""The agent contracts: an `Agent` (any client, any framework) or a `RolloutWorkflow` (tokens)."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from areal_sdk.types import Episode, Message, Outcome, Task, Tool, Turn


class SessionGenerate(Protocol):
    """The type of `EpisodeContext.generate`, which samples in the episode's session without HTTP."""

    async def __call__(
        self,
        prompt: Sequence[Message] | Sequence[int],
        *,
        tools: Sequence[Tool],
        max_new_tokens: int | None,
        temperature: float | None,
        stop: Sequence[str],
        stop_tokens: Sequence[int],
        policy: str,
    ) -> Turn: ...


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """The agent's access to the policy: an address and a key for any OpenAI client, and the facts of its episode."""

    base_url: str
    """Address for an OpenAI client. It ends in `/v1` and names this episode's session."""
    api_key: str
    """Key that also names the session, for clients that keep only host and key."""
    model: str
    episode_id: str
    seed: int
    """Seed of 32 bits, made from run seed, task, epoch and sibling. Draw from it, not from global `random`."""
    split: str = "train"
    """`"train"` or `"eval"`."""
    http_client: Any = field(default=None, repr=False)
    """A connection pool shared by all episodes of this process, made by the installed `openai`
    package: pass it to your client as `http_client=` and save its set-up time in every episode."""
    session_generate: SessionGenerate | None = field(default=None, repr=False)
    session_turns: Callable[[], Sequence[Turn]] | None = field(default=None, repr=False)

    async def generate(
        self,
        prompt: Sequence[Message] | Sequence[int],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        policy: str = "",
    ) -> Turn:
        """Sample one turn without HTTP: from messages, or from token ids taken as they are.

        `policy` names the policy that answers, in a run with several.
        The turn ends with a token of `stop_tokens`, or with one that ends an answer of this model anyway.
        The episode's session records it exactly like a turn that came over HTTP.
        """
        assert self.session_generate is not None, "the runner sets session_generate"
        return await self.session_generate(
            prompt,
            tools=tools,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
            stop_tokens=stop_tokens,
            policy=policy,
        )

    def client_variables(self, base_url: str = "") -> dict[str, str]:
        """The environment variables by which clients of OpenAI and Anthropic find the session of the episode. `base_url`:
        the address of the session for these clients; default: `self.base_url`."""
        address = base_url or self.base_url
        return {
            "OPENAI_BASE_URL": address,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": address.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "ANTHROPIC_MODEL": self.model,
            "AREAL_SDK_SEED": str(self.seed),
        }

    def order(self, task: Task) -> dict[str, Any]:
        """The task in JSON for a program in another process: its id and data, and the episode's model, id, seed and split."""
        return {
            "id": task.id,
            "data": dict(task.data),
            "model": self.model,
            "episode": self.episode_id,
            "seed": self.seed,
            "split": self.split,
        }

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns recorded so far."""
        assert self.session_turns is not None, "the runner sets session_turns"
        return tuple(self.session_turns())


AgentResult = float | Outcome | None
"""A reward, a full verdict, or None to leave scoring to the reward functions."""


class Agent(ABC):
    """The usual way to write an agent. One instance plays many episodes at once: keep no state on self.

    Keyword parameters of `__init__` are options, read from `[agent]`.
    """

    @abstractmethod
    async def run(self, task: Task, context: EpisodeContext) -> AgentResult:
        """Attempt `task`; return a reward, an `Outcome`, or None to leave scoring to rewards."""


class RolloutWorkflow(ABC):
    """An agent with full control: tokens in, tokens out, and the choice of what is trained."""

    @abstractmethod
    async def run_episode(
        self, task: Task, context: EpisodeContext
    ) -> Episode | Outcome | float | None:
        """Attempt `task` through `context.generate`.

        Return a verdict as `Agent.run` does, or an `Episode` that holds the turns to train: some of `context.turns`, each
        at most once, with its tokens and logprobs unchanged. None leaves scoring to the rewards.
        """


AgentFunction = Callable[[Task, EpisodeContext], AgentResult | Awaitable[AgentResult]]
"""A plain function, async or sync, works wherever an `Agent` does; sync ones run in threads."""

AgentLike = Agent | RolloutWorkflow | AgentFunction


@dataclass(frozen=True, slots=True)
class AgentForm:
    """Agents in a form of their own, such as those of another framework: how they are known, and how one is played."""

    fits: Callable[[type], bool]
    """Whether instances of a class have the form. Never asked about an `Agent`, a `RolloutWorkflow` or an `Environment`."""
    play: Callable[[Any, Task, EpisodeContext], Awaitable[Any]]
    """`await play(agent, task, context)` plays one episode, and returns what `RolloutWorkflow.run_episode` may return."""
    takes_tokens: bool = False
    """Whether `play` calls `context.generate`, so that a model of the run has to answer, not an endpoint elsewhere."""
