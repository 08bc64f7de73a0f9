"""The model card of an export: README.md with the figures of its run.

It names no path of the machine that trained: the card may be published.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import areal_sdk
from areal_sdk.loop.evaluation.earlier import BEFORE
from areal_sdk.loop.export.choice import Choice
from areal_sdk.models import HUB_IDS, is_hub_id
from areal_sdk.models.families import is_reward_model
from areal_sdk.models.rounding import Rounding
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir

MAX_RUNS = 100
"""Maximum length of a chain of runs, each of which began with the weights of the one before."""

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the exported files on the held-out tasks of the run."""

    reports: Mapping[str, EvalReport] = field(default_factory=dict)
    """Reports by split."""
    engine: str = ""
    """The engine that sampled, in words."""
    problem: str = ""
    """The reason why the files were not measured, if they should have been. The card leaves it out, because it may
    name directories."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of an export's files."""

    dtype: str
    adapter: bool = False
    """Whether only the adapter is exported, without the model."""
    rounding: Rounding | None = None
    """Effect of rounding on what was learnt. Not rounded: the effect that bfloat16 would have. None: not known."""
    is_rounded: bool = False
    """Whether the weights were rounded, as `rounding` says."""
    num_vanished: int = 0
    """Weights that the dtype turned into 0."""
    figures: Figures = field(default_factory=Figures)


def model_card(choice: Choice, exported: Exported, *, title: str) -> str:
    """README.md of an export."""
    config, events = choice.run.read_config(), choice.run.read_history()
    base = base_of(choice.run)
    is_judge = is_reward_model(choice.run.model) or (
        config.get("finetune", {}).get("objective") == "reward_model"
    )
    parts = [
        _front_matter(base, config, is_judge=is_judge, adapter=exported.adapter),
        f"# {title}\n\n{base}, {_whether_trained(choice)}.",
        table(_facts(choice, config, events, base, exported), ("", "")),
        *_held_out(choice, events, exported),
        _usage(title, base, exported, is_judge=is_judge),
    ]
    return "\n\n".join(parts) + "\n"


def _whether_trained(choice: Choice) -> str:
    """The words that tell whether the weights were trained: the best or the last ones of a run may be untrained."""
    if not is_untrained(choice):
        return "trained with areal-sdk"
    when = "as it was before training with areal-sdk"
    if choice.step:
        when = f"unchanged by training with areal-sdk, since none of its {choice.step} steps had a gradient"
    return f"{when}: these weights are the untrained model's"


def is_untrained(choice: Choice) -> bool:
    """Whether the weights are those of the base model: nothing updated them."""
    if choice.run.read_config().get("sft", {}).get("steps") or _earlier(choice.run):
        return False
    return not _total(_steps_of(choice), "train/num_updates")


def _steps_of(choice: Choice) -> list[Event]:
    """The steps that made the weights."""
    return [event for event in choice.run.read_steps() if event["step"] <= choice.step]


def base_of(run: RunDir) -> str:
    """The model that training began with, through runs that began with the weights of other runs."""
    name = _began_with(lineage(run)[-1])
    return HUB_IDS.get(name) or (name if is_hub_id(name) else Path(name).name)


def lineage(run: RunDir) -> list[RunDir]:
    """The run, the run whose weights it began with, the one before that, and so on."""
    runs = [run]
    while len(runs) < MAX_RUNS:
        path = Path(_began_with(runs[-1]))
        found = [p for p in (path, *path.parents[:2]) if (p / "config.toml").is_file()]
        if not found:
            break
        runs.append(RunDir(found[0]))
    return runs


def _began_with(run: RunDir) -> str:
    config = run.read_config()
    return str(config.get("init_from") or config.get("model", ""))


def _earlier(run: RunDir) -> str:
    """The runs that trained the weights before this run, oldest first."""
    told = []
    for before in reversed(lineage(run)[1:]):
        steps = before.read_steps()
        told.append(f"{_method(before.read_config())}, {steps[-1]['step'] if steps else 0} steps")
    return "; ".join(told)


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """The rows as a table in Markdown.

    >>> print(table([("steps", "3 | 4")], ("", "")))
    |  |  |
    |---|---|
    | steps | 3 \\| 4 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    head, *body = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([head, "|" + "---|" * len(header), *body])


def _front_matter(base: str, config: Mapping[str, Any], *, is_judge: bool, adapter: bool) -> str:
    lines = ["---"]
    if is_hub_id(base):
        lines.append(f"base_model: {base}")
    lines += [
        f"library_name: {'peft' if adapter else 'transformers'}",
        f"pipeline_tag: {'text-classification' if is_judge else 'text-generation'}",
        "tags:",
        *(f"- {tag}" for tag in ("areal-sdk", _method(config))),
        "---",
    ]
    return "\n".join(lines)


def _method(config: Mapping[str, Any]) -> str:
    objective = config.get("finetune", {}).get("objective")
    return str(objective or config.get("algorithm", {}).get("name", "")).replace("_", "-")


def _facts(
    choice: Choice,
    config: Mapping[str, Any],
    events: Sequence[Event],
    base: str,
    exported: Exported,
) -> list[tuple[str, str]]:
    steps = _steps_of(choice)
    trainer, lora = config.get("trainer", {}), config.get("trainer", {}).get("lora", {})
    rank = lora.get("rank", 0)
    learnt = f", LoRA of rank {rank}{'' if exported.adapter else ', merged'}" if rank else ""
    ledger = steps[-1].get("ledger", {}) if steps else {}
    untrained = is_untrained(choice)
    ended = steps[-1]["time"] if steps else events[-1]["time"] if events else time.time()
    facts = {
        "base model": base,
        "trained before": _earlier(choice.run),
        "algorithm": _method(config) + learnt,
        "agent": _file_name(config.get("agent") or config.get("env")) or config.get("command", ""),
        "tasks": _file_name(config.get("tasks"))
        or ", ".join(part["name"] for part in config.get("mixture", ())),
        "data": ", ".join(map(_file_name, config.get("finetune", {}).get("data", ()))),
        "rewards": ", ".join(config.get("rewards", {})),
        "weights": f"{choice.name}, {exported.dtype}",
        "lost by rounding": str(exported.rounding) if exported.is_rounded else "",
        "too small for the dtype": _count(exported.num_vanished or None),
        "steps": str(choice.step) + (", none with a gradient" if untrained and steps else ""),
        "episodes trained": "" if untrained else _count(ledger.get("trained")),
        "tokens trained": _count(_total(steps, "train/num_trained")),
        "tokens in their sequences": _count(_total(steps, "train/num_tokens")),
        "learning rate": _learning_rate(trainer.get("learning_rate", ""), steps),
        "seed": str(config.get("run", {}).get("seed", "")),
        "trained": time.strftime("%Y-%m-%d", time.gmtime(ended)),
        "areal-sdk": areal_sdk.__version__,
    }
    return [(name, value) for name, value in facts.items() if value]


def _learning_rate(asked: object, steps: Sequence[Event]) -> str:
    """The rate that was set; for "auto" the rates of the first update and of the last.

    >>> _learning_rate("auto", [{"train/learning_rate": 1e-5}, {}, {"train/learning_rate": 4.2e-5}])
    'auto, 1e-05 at first and 4.2e-05 at last'
    >>> _learning_rate(1e-6, []), _learning_rate("auto", [{}])
    ('1e-06', '')
    """
    if asked != "auto":
        return str(asked)
    used = [rate for event in steps if (rate := event.get("train/learning_rate"))]
    return f"auto, {used[0]:.3g} at first and {used[-1]:.3g} at last" if used else ""


def _held_out(choice: Choice, events: Sequence[Event], exported: Exported) -> Iterator[str]:
    """The measurements of these files, of exactly these weights in the run, and before training."""
    found = measured_in_run(choice, events)
    figures = exported.figures
    for split, report in figures.reports.items():
        found[split, "files"] = report.metrics()
    whens = {"before": "before", "run": "in the run", "files": "these files"}
    if not figures.reports:
        del whens["files"]
    splits = sorted({split for split, _ in found})
    rows = [
        (
            split,
            _tasks([event for when in whens if (event := found.get((split, when)))]),
            *(_rate(found.get((split, when)), name) for name in _SCORES for when in whens),
        )
        for split in splits
    ]
    losses = {
        (event["name"] == BEFORE): event
        for event in events
        if event["kind"] == "held_out" and event["step"] in (0, choice.step)
    }
    if not rows and not losses:
        yield "## Held-out tasks\n\nThese weights were not measured."
    if rows:
        columns = [f"{name} {when}" for name in _SCORES for when in whens.values()]
        yield "## Held-out tasks\n\n" + table(rows, ("split", "tasks", *columns))
        yield _whose_figures(exported)
    if losses:
        names = [
            key
            for key in next(iter(losses.values()))
            if key not in ("kind", "time", "name", "step")
        ]
        both = [
            (name, *(_number(losses.get(when, {}).get(name)) for when in (True, False)))
            for name in names
        ]
        yield "## Held-out data\n\n" + table(both, ("", "before", "after"))


_SCORES = ("success", "reward")


def measured_in_run(choice: Choice, events: Sequence[Event]) -> dict[tuple[str, str], Event]:
    """The evaluations of the chosen weights (`run`), and of those before training (`before`), by split."""
    return {
        (event["split"], "before" if is_before else "run"): event
        for event in events
        if event["kind"] == "eval"
        and event["from_version"] == event["to_version"] == event["step"]
        and ((is_before := event["name"] == BEFORE) or event["step"] == choice.step)
    }


def _whose_figures(exported: Exported) -> str:
    figures = exported.figures
    if figures.reports:
        return (
            f'"These files" were measured when they were exported, by the {figures.engine} of areal-sdk. '
            "The other figures are of the run, on the weights that its engine held."
        )
    of = "the model that this adapter is merged into" if exported.adapter else "its weights"
    return f"The figures were measured in the run, on {of}, and not on these files."


def _tasks(events: Sequence[Event]) -> str:
    return f"{events[-1]['tasks']:.0f}"


def _rate(event: Event | None, name: str) -> str:
    """A mean and its 95 % interval."""
    if event is None or name not in event:
        return "-"
    low, high = event.get(f"{name}_low"), event.get(f"{name}_high")
    return f"{event[name]:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _total(steps: Sequence[Event], name: str) -> int:
    return int(sum(event.get(name) or 0 for event in steps))


def _count(number: int | None) -> str:
    return f"{number:,}" if number else ""


def _file_name(name: object) -> str:
    """The name without its directories. For a table of options, the `name` in the table.

    >>> _file_name("/home/me/agents/calculator.py::Calculator"), _file_name("gsm8k")
    ('calculator.py::Calculator', 'gsm8k')
    """
    if isinstance(name, Mapping):
        name = name.get("name")
    path, separator, item = str(name or "").partition("::")
    return Path(path).name + separator + item


def _usage(title: str, base: str, exported: Exported, *, is_judge: bool) -> str:
    auto = "AutoModelForSequenceClassification" if is_judge else "AutoModelForCausalLM"
    lines = ["## Use", "", "```python", f"from transformers import {auto}, AutoTokenizer", ""]
    if exported.adapter:
        lines.insert(3, "from peft import PeftModel")
        lines.append(f'model = {auto}.from_pretrained("{base}")')
        lines.append(f'model = PeftModel.from_pretrained(model, "{title}")')
    else:
        lines.append(f'model = {auto}.from_pretrained("{title}")')
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("{title}")', "```"]
    if exported.rounding is not None and not exported.is_rounded:
        lines += [
            "",
            f"Keep the weights in float32: {exported.rounding}. Servers such as vLLM and SGLang load float32 "
            "as 16 bits unless they are started with `--dtype float32`.",
        ]
    return "\n".join(lines)
