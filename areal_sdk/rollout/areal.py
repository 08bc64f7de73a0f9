"""AReaL's own agent signatures, so that an AReaL user's agent runs as it is.

* `async def run(self, data, **extra)`: `data` is the task's data; `extra` has `base_url`,
  `api_key` and `http_client`. Returns a reward, or rewards by completion id.
* `async def arun_episode(self, engine, data)`: `engine.agenerate(request)` takes an object with
  `input_ids` (and `gconfig.max_new_tokens`, `gconfig.temperature`, `gconfig.stop`) and answers with
  `input_tokens, output_tokens, output_logprobs, output_versions, stop_reason`. What it returns is
  read for its one reward only: the tokens are those that were recorded. None rejects the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import AgentError
from areal_sdk.types import Outcome, Task, Turn


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One completion, under AReaL's names."""

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    stop_reason: str
    rid: str = ""

    @property
    def input_len(self) -> int:
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        return len(self.output_tokens)


class SessionEngine:
    """The episode's token door, under AReaL's names."""

    def __init__(self, context: EpisodeContext) -> None:
        self._context = context

    async def agenerate(self, req: Any) -> ModelResponse:
        config = getattr(req, "gconfig", None)
        turn = await self._context.generate(
            tuple(int(token) for token in req.input_ids),
            max_new_tokens=getattr(config, "max_new_tokens", None),
            temperature=getattr(config, "temperature", None),
            stop=tuple(getattr(config, "stop", None) or ()),
        )
        return _response(turn, rid=str(getattr(req, "rid", "")))

    def get_version(self) -> int:
        """The newest version seen in this episode."""
        return max((v for turn in self._context.turns for v in turn.versions), default=0)


class _Runs(Protocol):
    async def run(self, data: dict[str, Any], **extra: Any) -> Any: ...


async def play_run(agent: Any, task: Task, context: EpisodeContext) -> Any:
    runs: _Runs = agent
    return await runs.run(
        dict(task.data),
        base_url=context.base_url,
        api_key=context.api_key,
        http_client=context.http_client,
    )


async def play_arun_episode(
    agent: Any, task: Task, context: EpisodeContext
) -> Outcome | float | None:
    result = await agent.arun_episode(SessionEngine(context), dict(task.data))
    if result is None:
        return Outcome.abstained("arun_episode returned None: it rejected the episode")
    if isinstance(result, (int, float, Outcome)):
        return result
    if isinstance(result, Mapping):
        return _reward_of(result)
    raise AgentError(
        f"arun_episode returned {type(result).__name__}; a mapping with `rewards`, a number or "
        "None was expected"
    )


def _reward_of(result: Mapping[str, Any]) -> float:
    """The one reward in AReaL's result: a tensor or list `rewards`, or one object a completion."""
    if "rewards" in result:
        rewards = result["rewards"]
        flat = rewards.flatten().tolist() if hasattr(rewards, "flatten") else rewards
        values = [float(value) for value in flat] if isinstance(flat, Sequence) else [float(flat)]
    else:
        values = [
            float(item.reward)
            for item in result.values()
            if getattr(item, "reward", None) is not None
        ]
    if len(values) != 1:
        raise AgentError(
            f"arun_episode returned {len(values)} rewards for one episode, which has one: let "
            "rollout.group_size play a task several times, or write `run(self, data, **extra)` and "
            "return rewards by completion id"
        )
    return values[0]


def _response(turn: Turn, *, rid: str) -> ModelResponse:
    return ModelResponse(
        input_tokens=list(turn.prompt_tokens),
        output_tokens=list(turn.output_tokens),
        output_logprobs=list(turn.logprobs),
        output_versions=list(turn.versions),
        stop_reason=turn.finish_reason.value,
        rid=rid,
    )
