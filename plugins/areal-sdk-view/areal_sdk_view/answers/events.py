"""The curves of a run as columns, and what happened beside them: evaluations, notices, resumes, checkpoints."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from areal_sdk.records import PANELS, FollowedRun
from areal_sdk_view.answers.lanes import is_number, steps_of

AXES = ("step", "time", "train_seconds", "batch/episodes", "batch/sampled_tokens", "version")
"""The columns from which the page makes its horizontal axes."""
MORE_PANELS: Mapping[str, Mapping[str, str]] = {
    "clipped and weighted": {
        "train/clip_fraction": "clipped",
        "train/ess": "effective share of the samples",
        "train/share_without_advantage": "tokens without advantage",
    },
    "KL of a step": {"train/kl_step": "moved by the step"},
    "seconds an episode": {
        "batch/duration_s_p50": "median",
        "batch/duration_s_p90": "90 %",
        "batch/duration_s_p99": "99 %",
    },
    "seconds by part": {
        "train/publish_s": "publish",
        "engine_update_s": "engine takes weights",
        "train/step_s": "step",
        "batch/waited_s": "wait for episodes",
    },
}
_PROCESS = re.compile(r"train/cpu_(main|engine|.+-.+)_s")
"""CPU seconds so far of main process, engine, a trainer or agents; other names of this form are parts of one step."""
_OPTIONAL = re.compile(r"batch/(outcome/|source/.*/reward$)")


def read(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The curves of the run's metrics. `names`: a regular expression of further metrics."""
    pattern = _pattern(query.get("names") or "(?!)")
    warm, steps = steps_of(run, "sft"), steps_of(run)
    names = dict.fromkeys(key for step in steps for key, value in step.items() if is_number(value))
    cpu_s = _cpu_seconds(run.events)
    panels = {**PANELS, **MORE_PANELS}
    wanted = {*AXES, *(name for panel in panels.values() for name in panel)}
    chosen = [n for n in names if n in wanted or _OPTIONAL.match(n) or pattern.search(n)]
    return {
        "num_resumes": run.num_resumes,
        "names": list(names),
        "columns": {name: [step.get(name) for step in steps] for name in chosen}
        | {"cpu_s": [cpu_s[step["step"]] for step in steps]},
        "panels": _panels(panels, chosen),
        "evaluations": _evaluations(run.events),
        "warm_up": {name: [event.get(name) for event in warm] for name in ("step", "loss")},
        "happened": _happened(run),
    }


def _panels(panels: Mapping[str, Mapping[str, str]], chosen: list[str]) -> list[dict[str, Any]]:
    found = {title: {n: of[n] for n in of if n in chosen} for title, of in panels.items()}
    for name in chosen:
        label = name.split("/", 2)[-1].removesuffix("/reward")
        if name.startswith("batch/outcome/"):
            found[name.removeprefix("batch/")] = {name: label}
        elif name.startswith("batch/source/"):
            found.setdefault("training reward by source", {})[name] = label
    series = {t: [{"name": n, "label": of[n]} for n in of] for t, of in found.items()}
    return [{"title": title, "series": of} for title, of in series.items() if of]


def _cpu_seconds(events: Iterable[Mapping[str, Any]]) -> dict[float, float | None]:
    """The CPU time, up to each step, of main process, engine, trainers and agents, as far as they run on the machine of
    the main process. A resume starts them anew; steps that it repeats count once. None: not measured."""
    spent, before, found = 0.0, dict[str, float](), dict[float, float | None]()
    for event in events:
        if event["kind"] == "resume":
            before.clear()
        elif event["kind"] == "step":
            now = {k: v for k, v in event.items() if _PROCESS.fullmatch(k) and is_number(v)}
            for key, used in now.items():  # a count that fell: the engine was started again
                spent += used - (old if (old := before.get(key, 0.0)) <= used else 0.0)
            before |= now
            found[event["step"]] = round(spent, 2) if now else None
    return found


def _evaluations(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The latest measurement of each split after each step."""
    measured = [event for event in events if event["kind"] in ("eval", "held_out")]
    found = {(event.get("split", "eval"), event.get("step", 0)): event for event in measured}
    return sorted(found.values(), key=lambda event: float(event.get("step", 0)))


def _happened(run: FollowedRun) -> list[dict[str, Any]]:
    """The time, the kind and the text of an event line on the curves. A failure, which names no step, is at the last one."""
    found, step = list[dict[str, Any]](), 0
    for event in run.events:
        kind = event["kind"]
        step = event["step"] if kind in ("step", "resume") else step
        at = {"step": event.get("step", step), "time": event["time"]}
        if kind == "notice":
            found.append({**at, "kind": event["level"], "text": event["text"]})
        elif kind == "resume":
            found.append({**at, "kind": "resume", "text": f"resumed after step {event['step']}"})
        elif kind == "failed":
            found.append({**at, "kind": "failed", "text": event["error"]})
    for path in sorted(run.run_dir.checkpoints.glob("step-*")):
        number = path.name.removeprefix("step-")
        with suppress(FileNotFoundError):  # the run deletes old ones
            if number.isdecimal():
                at = {"step": int(number), "time": path.stat().st_mtime}
                text = f"checkpoint of step {int(number)}"
                found.append({**at, "kind": "checkpoint", "text": text})
    return found


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as exc:
        raise ValueError(f"names = {text!r} is no regular expression: {exc}") from exc
