"""Run directories with episodes in them, as runs and gateways write them."""

from collections.abc import Iterable
from pathlib import Path

from areal_sdk.telemetry import EpisodeWriter, RunDir
from areal_sdk.types import Episode, Exclusion, Message, Outcome, Task, Turn

ASKED: Message = {"role": "user", "content": "1+1?"}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def sampled(
    answer: str,
    reward: float | None,
    *,
    task: str = "t",
    id: str = "",
    excluded: bool = False,
    asked: str = "1+1?",
) -> Episode:
    """One turn of our own engine: byte tokens."""
    tokens = tuple(answer.encode())
    turn = Turn(
        tuple(asked.encode()),
        tokens,
        (-0.5,) * len(tokens),
        (0,) * len(tokens),
        message=said(answer),
        new_messages=({**ASKED, "content": asked},),
        excluded=Exclusion.GREEDY if excluded else None,
    )
    outcome = Outcome.abstained() if reward is None else Outcome.scored(reward)
    return Episode(id or f"{task}-{answer}", Task(task), (turn,), outcome, group=f"group-{task}")


def told(answer: str, reward: float, *, task: str = "t", asked: str = "1+1?") -> Episode:
    """Two turns of another provider: text, with a worked example that it did not say."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    calls: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    first = Turn(
        (),
        (),
        (),
        (),
        message=calls,
        new_messages=(ASKED, said("2"), {**ASKED, "content": asked}),
        details={"tools": tools},
    )
    result: Message = {"role": "tool", "tool_call_id": "1", "content": "2"}
    last = Turn((), (), (), (), message=said(answer), new_messages=(result,), parent=0)
    return Episode(
        f"{task}-{answer}", Task(task), (first, last), Outcome.scored(reward), group=task
    )


def run_with(
    path: Path, episodes: Iterable[Episode], *, model: str = "tiny", split: str = "train"
) -> RunDir:
    run_dir = RunDir.create(path.parent, path.name)
    run_dir.write_config({"model": model})
    writer = EpisodeWriter(run_dir.episodes)
    for episode in episodes:
        writer.write(episode, split=split)
    writer.close()
    return run_dir
