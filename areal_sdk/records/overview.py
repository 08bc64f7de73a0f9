"""A run in one line: agent, model, success, and the way it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from areal_sdk.config.sections.base import ENDLESS
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.files import read_json_lines
from areal_sdk.telemetry.metrics import last_event


class RunFate(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """State of a run that was stopped before its end, or killed: it can be resumed."""
    FAILED = "failed"
    RECORDED = "recorded"
    """State of the recorded sessions of a server that does not learn."""
    UNREADABLE = "unreadable"
    """State of a directory that has a run's config.toml, if one of its files cannot be read."""


@dataclass(frozen=True, slots=True)
class HeldOutChange:
    """The first and the last measurement on held-out data."""

    measure: str
    """`success` or `reward` of the agent, or `loss` of a run that learnt from data."""
    before: float | None
    """The value before the first step; None if it was not measured."""
    after: float | None
    """The latest value; None if nothing was measured since the first step, as in a run that was interrupted."""


@dataclass(frozen=True, slots=True)
class RunOverview:
    """The row of a run in the list of runs."""

    name: str
    path: str
    began: float
    """Unix time."""
    state: RunFate
    agent: str = "-"
    model: str = "-"
    algorithm: str = "-"
    """Algorithm of the run, or its objective if it learns from data; `-` if nothing is learnt."""
    steps: int = 0
    total_steps: int = 0
    """Number of steps that were asked for; 0 if no number was given."""
    held_out: HeldOutChange | None = None
    problem: str = ""
    """The error of a run that failed or cannot be read."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_runs(root: Path) -> list[RunOverview]:
    """The runs in `root`, newest first. Directories that are no runs are left out."""
    candidates = (path for path in root.iterdir() if (path / "config.toml").is_file())
    found = [run for path in candidates if (run := overview_of(path)) is not None]
    return sorted(found, key=lambda run: (run.began, run.name), reverse=True)


def overview_of(path: Path) -> RunOverview | None:
    """The overview of the run in `path`; None if its config.toml holds no settings of a run."""
    run_dir = RunDir(path)
    try:
        config = run_dir.read_config()
        return _overview(run_dir, config) if "model" in config else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        problem = f"{type(exc).__name__}: {exc}"
        changed = run_dir.config.stat().st_mtime
        return RunOverview(path.name, str(path), changed, RunFate.UNREADABLE, problem=problem)


def _overview(run_dir: RunDir, config: Mapping[str, Any]) -> RunOverview:
    events = run_dir.read_history()
    if not events and any(read_json_lines(run_dir.metrics)):
        raise ValueError(f"no line of {run_dir.metrics.name} is an event")
    steps = [event["step"] for event in events if event["kind"] == "step"]
    learns = not _only_serves(config) and not any(event["kind"] == "measure" for event in events)
    objective = config.get("finetune", {}).get("objective")
    total = config.get("run", {}).get("steps", 0)
    last = last_event(events)
    return RunOverview(
        name=run_dir.path.name,
        path=str(run_dir.path),
        began=min([run_dir.read_began(), *(event["time"] for event in events[:1])]),
        state=_state(run_dir, config, events),
        agent=_agent(run_dir, config),
        model=_name(str(config.get("serve", {}).get("upstream") or config["model"])),
        algorithm=objective or config.get("algorithm", {}).get("name", "-") if learns else "-",
        steps=steps[-1] if steps else 0,
        total_steps=total if learns and total < ENDLESS else 0,
        held_out=held_out(events),
        problem=last["error"] if last.get("kind") == "failed" else "",
    )


def held_out(events: Sequence[Mapping[str, Any]]) -> HeldOutChange | None:
    """The first and the last measurement on the split that was measured first."""
    measured = [event for event in events if event["kind"] in ("eval", "held_out")]
    if not measured:
        return None
    split = measured[0].get("split")
    of_split = [event for event in measured if event.get("split") == split]
    of_split.sort(
        key=lambda event: event.get("step") or 0
    )  # a best step is measured again at the end
    for measure in ("success", "reward", "loss"):
        known = [event for event in of_split if event.get(measure) is not None]
        before = [event[measure] for event in known if event.get("name") == "before"]
        after = [event[measure] for event in known if event.get("name") != "before"]
        if known:
            last = after[-1] if after else None
            return HeldOutChange(measure, before[0] if before else None, last)
    return None


def _state(
    run_dir: RunDir, config: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> RunFate:
    if run_dir.is_in_use():
        return RunFate.RUNNING
    if _only_serves(config):
        return RunFate.RECORDED
    ways = {"end": RunFate.FINISHED, "failed": RunFate.FAILED}
    return ways.get(last_event(events).get("kind", ""), RunFate.INTERRUPTED)


def _agent(run_dir: RunDir, config: Mapping[str, Any]) -> str:
    """The agent's name or command, as the user gave it; `callers` for a server, and `-` if no agent is known."""
    given = config.get("agent") or config.get("env") or run_dir.read_call().get("agent")
    if command := config.get("command"):
        return str(command)
    if isinstance(given, Mapping):
        given = given.get("name")
    serves = config.get("serve", {})
    is_served = _only_serves(config) or serves.get("learn")
    return _name(str(given or ("callers" if is_served else "-")))


def _name(reference: str) -> str:
    """The last part of a path. A name on a hub and an address stay whole.

    >>> _name("/home/me/agent.py::Mine"), _name("org/model"), _name("https://host/v1")
    ('agent.py::Mine', 'org/model', 'https://host/v1')
    """
    return Path(reference).name if reference.startswith(("/", ".", "~")) else reference


def _only_serves(config: Mapping[str, Any]) -> bool:
    serve = config.get("serve", {})
    return bool(serve.get("record") or serve.get("upstream")) and not serve.get("learn")
