"""Run directories with a known fault, and healthy ones. The metrics are those of real runs, with the fault put into them; most
episodes went through the real gateway, on scripted tokens.

    python -m tests.records.faults DIRECTORY     # writes all of them, to be looked at
"""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from areal_sdk import Agent, Episode, EpisodeContext, Outcome, Task
from areal_sdk.testing import RecordedRun, Reply, run_agent
from areal_sdk.types import ErrorKind

Steps = list[dict[str, Any]]
Write = Callable[[Path], Awaitable[None]]

HERE = Path(__file__).parent
RECORDED: Mapping[str, Mapping[str, Any]] = {
    **json.loads((HERE / "recorded_runs.json").read_text()),
    **json.loads((HERE / "flat_run.json").read_text()),
}
FLAT = "mod7, rate that follows a bound"
SETTINGS = RECORDED[FLAT]["settings"]
GROUP = 4
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>{"name": "look_up", "arguments": {"word": "tree"}}</tool_call>'


def recorded(run: str | Mapping[str, Any], **changed: Callable[[float], float]) -> Steps:
    """The steps of a real run. A changed metric is a function of how much of the run is over, from 0 to 1."""
    if isinstance(run, str):
        run = RECORDED[run]
    count = run["num_steps"]
    columns = {k: v if isinstance(v, list) else [v] * count for k, v in run["steps"].items()}
    return [
        {
            "step": at + 1,
            **{k: column[at] for k, column in columns.items()},
            **{k.replace("__", "/"): f(at / (count - 1)) for k, f in changed.items()},
        }
        for at in range(count)
    ]


class Client(Agent):
    """Talks for four turns. `system` and `tools` are what a careless client gets wrong."""

    def __init__(
        self,
        *,
        system: Callable[[int], str] = lambda turn: "Be brief.",
        said: Callable[[str], str] = lambda text: text,
        tools: bool = False,
        is_fragile: bool = False,
    ) -> None:
        self._system, self._said, self._tools, self._is_fragile = system, said, tools, is_fragile

    async def run(self, task: Task, context: EpisodeContext) -> float:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        more: dict[str, Any] = {"tools": TOOLS} if self._tools else {}
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Count."}]
        for turn in range(4):
            told = [{"role": "system", "content": self._system(turn)}, *messages]
            reply = await client.chat.completions.create(
                model=context.model,
                messages=told,  # type: ignore[arg-type]
                max_tokens=48,
                **more,
            )
            message = reply.choices[0].message.model_dump(exclude_none=True)
            if self._is_fragile:
                int(message["content"])
            if "content" in message:
                message["content"] = self._said(message["content"])
            messages.append(message)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "a plant"}
                for call in message.get("tool_calls", ())
            ] or [{"role": "user", "content": f"On, {turn}."}]
        return 1.0


async def played(
    agent: Agent, script: Callable[[Any], Any] | Sequence[Any], *, source: str = ""
) -> Episode:
    task = Task("t", {"source": source} if source else {})
    return await run_agent(agent, task, engine=script)


def write_run(
    path: Path,
    steps: Steps,
    episode: Episode,
    *,
    settings: Mapping[str, Any] = SETTINGS,
    change: Callable[[Episode, float, random.Random], Episode] = lambda one, part, chance: one,
) -> None:
    """A run with these steps. A group of each step is like `episode`, with rewards by chance, after `change`."""
    run, chance = RecordedRun(path, settings=settings), random.Random(path.name)
    for metrics in steps:
        step = metrics["step"]
        part = (step - 1) / max(1, len(steps) - 1)
        group = []
        for sibling in range(GROUP):
            earned = float(chance.random() < metrics["batch/success"])
            name, task = f"train-{step}.{sibling}", replace(episode.task, id=f"task-{step % 7}")
            one = replace(
                episode,
                id=name,
                task=task,
                group=f"train-{step}",
                sibling=sibling,
                outcome=Outcome.scored(earned, success=earned == 1.0),
            )
            one = change(one, part, chance)
            if one.outcome.error is not None:
                run.drop(one, f"error_{one.outcome.error.value}", version=step - 1)
            else:
                group.append((one, ()))
        figures = {k: v for k, v in metrics.items() if k != "step"}
        advantages = {one.id: (one.reward or 0.0) - 0.5 for one, _ in group}
        run.step(step, group, advantages=advantages, metrics=figures)
    run.close()


def lines(text: str) -> Callable[[Any], Any]:
    """A script that always says the same."""
    return lambda request: text


async def usual(*, tools: bool = False, source: str = "") -> Episode:
    """An episode without a fault."""
    replies = (
        [CALL, "A tree is a plant.", "Two.", "Three."]
        if tools
        else ["One.", "Two.", "Three.", "Four."]
    )
    return await played(Client(tools=tools), replies, source=source)


def with_text(episode: Episode, text: str) -> Episode:
    """The episode as one turn that says `text`."""
    (turn, *_) = episode.turns
    message = {"role": "assistant", "content": text}
    return replace(episode, turns=(replace(turn, message=message),))


def failed(episode: Episode, kind: ErrorKind, message: str) -> Episode:
    return replace(episode, outcome=Outcome.failed(kind, message))


# --- faults ---------------------------------------------------------------------------------------


def of_metrics(steps: Callable[[], Steps], name: str = FLAT) -> Write:
    async def write(path: Path) -> None:
        settings = RECORDED[name].get("settings") or SETTINGS
        write_run(path, steps(), await usual(), settings=settings)

    return write


def of_episodes(
    agent: Callable[[], Agent], script: Any, **changed: Callable[[float], float]
) -> Write:
    async def write(path: Path) -> None:
        episode = await played(agent(), script)
        write_run(path, recorded(FLAT, **changed), replace(episode, outcome=Outcome.scored(0.0)))

    return write


def later(before: float, after: float, *, start: float = 0.4) -> Callable[[float], float]:
    """A figure that goes from one level to another, beginning after a part of the run."""
    return lambda part: before + (after - before) * min(1.0, max(0.0, part - start) / 0.2)


def of_length(episode: Episode, count: int) -> Episode:
    """The episode with its first turn alone, of `count` sampled tokens."""
    turn = replace(
        episode.turns[0],
        output_tokens=tuple(range(9, 9 + count)),
        logprobs=(-0.5,) * count,
        versions=(0,) * count,
    )
    return replace(episode, turns=(turn,))


async def hacked_by_length(path: Path) -> None:
    longer = later(20.0, 90.0, start=0.1)

    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        count = round(longer(part) * chance.uniform(0.7, 1.3))
        outcome = Outcome.scored(count / 100, success=one.outcome.success)
        return replace(of_length(one, count), outcome=outcome)

    steps = recorded(
        "rate that follows a bound",
        batch__sampled_tokens=longer,
        batch__reward=lambda part: longer(part) / 100,
        batch__reward_std=lambda part: 0.08,
        batch__success=later(0.6, 0.2, start=0.1),
    )
    write_run(path, steps, await usual(), change=change)


async def noisy_source(path: Path) -> None:
    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        is_judged = chance.random() < 0.5
        task = Task(
            f"{'poem' if is_judged else 'sum'}-{chance.randrange(6)}",
            {"source": "poems" if is_judged else "sums"},
        )
        says = chance.choice(["a rose", "a tree", "a stone"])
        reward = chance.random() if is_judged else float(says == "a tree")
        return replace(with_text(one, says), task=task, outcome=Outcome.scored(reward))

    write_run(path, recorded(FLAT), await usual(), change=change)


async def failing_source(path: Path) -> None:
    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        is_code = chance.random() < 0.5
        one = replace(one, task=Task(one.task.id, {"source": "code" if is_code else "sums"}))
        if is_code and part > 0.3:
            return failed(one, ErrorKind.REWARD, "reward 'runs': TimeoutError: no free sandbox")
        return one

    steps = recorded(FLAT, batch__reward_error_share=later(0.0, 0.5, start=0.3))
    write_run(path, steps, await usual(), change=change)


async def agent_errors(path: Path) -> None:
    """The client parses an answer that is no number: the policy is not told."""
    raised = await played(Client(is_fragile=True), lines("It is 12."))

    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        fails = chance.random() < 0.3
        return replace(one, outcome=raised.outcome) if fails else one

    steps = recorded(FLAT, batch__agent_error_share=lambda part: 0.3)
    write_run(path, steps, await usual(), change=change)


FAULTS: Mapping[str, tuple[str, Write]] = {
    "nothing is ever solved": (
        "zero variance, hopeless",
        of_metrics(lambda: recorded("reward 0 for all"), "reward 0 for all"),
    ),
    "everything is solved from the start": (
        "zero variance, solved",
        of_metrics(lambda: recorded("reward 1 for all"), "reward 1 for all"),
    ),
    "a rate of 2e-5 for the tiny model": (
        "rate too low",
        of_metrics(lambda: recorded("rate of 2e-5"), "rate of 2e-5"),
    ),
    "a rate of 3e-5 for SmolLM2, unbounded": (
        "rate too high",
        of_metrics(
            lambda: recorded("smollm2, rate of 3e-5, collapse"), "smollm2, rate of 3e-5, collapse"
        ),
    ),
    "the reward pays for length": ("reward hacked by length", hacked_by_length),
    "the reward pays for politeness": (
        "reward hacked by a component",
        of_metrics(
            lambda: recorded(
                "rate that follows a bound",
                batch__reward=later(0.6, 1.1, start=0.1),
                batch__reward_std=lambda part: 0.2,
                batch__success=later(0.6, 0.25, start=0.1),
                **{
                    "batch__outcome/reward/polite": later(0.1, 0.9, start=0.1),
                    "batch__outcome/reward/right": later(0.6, 0.25, start=0.1),
                },
            )
        ),
    ),
    "the reward pays for a format": (
        "reward hacked by a component",
        of_metrics(
            lambda: recorded(
                "rate that follows a bound",
                batch__reward=later(0.3, 0.9, start=0.2),
                batch__reward_std=lambda part: 0.3,
                batch__success=later(0.5, 0.1, start=0.3),
                **{
                    "batch__outcome/reward/format": later(0.2, 1.0, start=0.2),
                    "batch__outcome/reward/right": later(0.5, 0.1, start=0.3),
                },
            )
        ),
    ),
    "a rate of 5e-3 for the tiny model (a real run)": (
        "rate too high",
        of_metrics(lambda: recorded("rate of 5e-3"), "rate of 5e-3"),
    ),
    "small steps, and all of them away from the reference": (
        "KL runaway",
        of_metrics(
            lambda: recorded(
                FLAT,
                train__kl_reference=later(0.01, 2.5, start=0.2),
                train__kl_step=lambda part: 0.008,
                train__entropy=later(0.97, 2.2, start=0.3),
                batch__success=later(0.2, 0.05, start=0.5),
                batch__reward=later(0.2, 0.05, start=0.5),
            )
        ),
    ),
    "one answer is left": (
        "entropy collapse",
        of_metrics(
            lambda: recorded(
                FLAT,
                train__entropy=later(0.97, 0.005, start=0.2),
                batch__uniform_groups=later(1.0, 4.0, start=0.25),
                train__share_without_advantage=later(0.3, 1.0, start=0.25),
                train__kl_step=lambda part: 0.003,
            )
        ),
    ),
    "48 tokens are too few": (
        "answers cut by the limit",
        of_metrics(
            lambda: recorded(
                FLAT, batch__truncated=lambda part: 0.55, batch__sampled_tokens=lambda part: 40.0
            )
        ),
    ),
    "the stop token is not known": (
        "stop token never sampled",
        of_episodes(
            Client,
            lambda request: Reply(" ".join(map(str, range(80))), stop=False),
            batch__truncated=lambda part: 1.0,
        ),
    ),
    "calls are not JSON": (
        "tool calls never parse",
        of_episodes(
            lambda: Client(tools=True),
            lines('<tool_call>{"name": "look_up", "arguments": {word: tree}</tool_call>'),
            batch__offered_tools=lambda part: 32.0,
            batch__called_tools=lambda part: 0.0,
        ),
    ),
    "the system message has a clock": (
        "forks on every turn",
        of_episodes(
            lambda: Client(system=lambda turn: f"It is 12:0{turn}."),
            ["One.", "Two.", "Three.", "Four."],
        ),
    ),
    "long episodes are too old": (
        "staleness drops the long ones",
        of_metrics(
            lambda: recorded(
                FLAT,
                batch__stale_share=lambda part: 0.25,
                batch__stale_share_longest_quarter=later(0.0, 0.8, start=0.1),
                batch__stale_share_shortest_quarter=lambda part: 0.02,
            )
        ),
    ),
    "a judge that throws dice, for one source": ("noisy reward", noisy_source),
    "a sandbox that is full, for one source": ("failing reward", failing_source),
    "an agent that cannot read its answers": ("agent errors", agent_errors),
    "an engine that rounds its cache": (
        "engine and trainer disagree",
        of_metrics(lambda: recorded(FLAT, train__dlogp_lag_0=lambda part: 0.45)),
    ),
    "bytes that are no text": (
        "garbled output",
        of_episodes(
            Client, lambda request: Reply([*random.Random(1).choices(range(130, 250), k=40)])
        ),
    ),
    "one server for a long task": (
        "generation starves training",
        of_metrics(
            lambda: recorded(
                FLAT, batch__waited_s=lambda part: 190.0, train__step_s=lambda part: 9.0
            )
        ),
    ),
}
"""The fault that `why` has to name first, and what writes the run, by what is wrong."""


async def failing_environment(path: Path) -> None:
    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        if part > 0.5 and chance.random() < 0.4:
            return failed(one, ErrorKind.ENVIRONMENT, "TypeError: 'NoneType' is not subscriptable")
        return one

    steps = recorded(FLAT, batch__environment_error_share=later(0.0, 0.4, start=0.5))
    write_run(path, steps, await usual(), change=change)


async def falls_into_loops(path: Path) -> None:
    """The policy learns, jumps, and then says the same three tokens until the limit."""
    loop = await played(Client(), lambda request: Reply([300, 301, 302] * 20, stop=False))

    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        return replace(one, turns=loop.turns) if part > 0.6 else one

    steps = recorded(
        "rate that follows a bound",
        train__kl_step=lambda part: 0.9 if 0.55 < part < 0.58 else 0.004,
        batch__success=later(0.6, 0.0, start=0.58),
        batch__reward=later(0.6, 0.0, start=0.58),
        batch__truncated=later(0.0, 1.0, start=0.58),
        batch__sampled_tokens=later(12.0, 200.0, start=0.58),
    )
    write_run(path, steps, await usual(), change=change)


APART: Mapping[str, tuple[str, Write]] = {
    "an environment that breaks midway": ("environment errors", failing_environment),
    "a jump, and loops after it": ("rate too high", falls_into_loops),
    "a client that strips what the model said": (
        "forks on every turn",
        of_episodes(
            lambda: Client(said=lambda text: text.strip(" .")),
            ["One. ", "Two. ", "Three. ", "Four. "],
        ),
    ),
    "gradients that are not finite": (
        "no update",
        of_metrics(
            lambda: recorded(
                FLAT,
                train__num_updates=lambda part: 0.0,
                train__num_skipped_updates=lambda part: 1.0,
                train__grad_norm=lambda part: 0.0,
            )
        ),
    ),
    "a trainer that is too small": (
        "training starves generation",
        of_metrics(
            lambda: recorded(
                FLAT,
                batch__waited_s=lambda part: 0.1,
                batch__running=lambda part: 0.0,
                train__step_s=lambda part: 140.0,
            )
        ),
    ),
    "a tool that the model does not know of": (
        "tools never called",
        of_episodes(
            lambda: Client(tools=True),
            ["One.", "Two.", "Three.", "Four."],
            batch__offered_tools=lambda part: 32.0,
            batch__called_tools=lambda part: 0.0,
        ),
    ),
}
"""Faults that were written down and judged once, when the rules stood."""


async def pays_for_brevity(path: Path) -> None:
    """Longer answers are right, and shorter ones are paid."""
    shorter = later(80.0, 12.0, start=0.2)

    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        count = max(1, round(shorter(part) * chance.uniform(0.6, 1.4)))
        (turn, *_) = one.turns
        turn = replace(
            turn,
            output_tokens=tuple(range(9, 9 + count)),
            logprobs=(-0.5,) * count,
            versions=(0,) * count,
        )
        paid = Outcome.scored(1.0 - count / 120, success=one.outcome.success)
        return replace(one, turns=(turn,), outcome=paid)

    steps = recorded(
        "rate that follows a bound",
        batch__sampled_tokens=shorter,
        batch__reward=lambda part: 1.0 - shorter(part) / 120,
        batch__reward_std=lambda part: 0.1,
        batch__success=later(0.7, 0.3, start=0.3),
    )
    write_run(path, steps, await usual(), change=change)


async def out_of_time(path: Path) -> None:
    """A tool becomes slow, and the longer episodes do not end."""

    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        if part > 0.4 and chance.random() < 0.35:
            return failed(one, ErrorKind.TIMEOUT, "the episode took longer than 600 s")
        return one

    steps = recorded(FLAT, batch__timeout_share=later(0.0, 0.35, start=0.4))
    write_run(path, steps, await usual(), change=change)


KEPT: Mapping[str, tuple[str, Write]] = {
    "the reward pays for brevity": ("reward hacked by length", pays_for_brevity),
    "a server that keeps its old weights from midway": (
        "engine and trainer disagree",
        of_metrics(
            lambda: recorded(
                "rate that follows a bound",
                train__dlogp_lag_0=later(0.01, 0.6, start=0.5),
                batch__success=later(0.6, 0.45, start=0.55),
                batch__reward=later(0.6, 0.45, start=0.55),
            )
        ),
    ),
    "a tool that becomes slow": ("timeouts", out_of_time),
}
"""Faults that were written before the last rules were, and judged once after them."""


# --- healthy runs ---------------------------------------------------------------------------------


def healthy(name: str, *, tools: bool = False, errors: float = 0.0) -> Write:
    async def write(path: Path) -> None:
        def change(one: Episode, part: float, chance: random.Random) -> Episode:
            if chance.random() < errors:
                return failed(one, ErrorKind.AGENT, "KeyError: 'answer'")
            return one

        settings = RECORDED[name].get("settings") or SETTINGS
        write_run(path, recorded(name), await usual(tools=tools), settings=settings, change=change)

    return write


HEALTHY: Mapping[str, Write] = {
    "a run that learns": healthy("rate of 5e-4"),
    "a run that learns slowly, with tools": healthy(
        "rate that follows a bound, 140 steps", tools=True
    ),
    "a run whose entropy falls as it learns": healthy("smollm2, bound of 0.01"),
    "a run that learns, with a few errors": healthy("smollm2, rate of 3e-5", errors=0.04),
    "a flat run": healthy(FLAT),
}


async def write_all(directory: Path) -> None:
    for name, (_, write) in {**FAULTS, **APART, **KEPT}.items():
        await write(directory / name.replace(" ", "-"))
    for name, healthy_write in HEALTHY.items():
        await healthy_write(directory / name.replace(" ", "-"))


if __name__ == "__main__":
    asyncio.run(write_all(Path(sys.argv[1])))
