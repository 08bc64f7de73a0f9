"""Tables and lines that commands print at their end: the run, its evaluations, its notices, and what to type next."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import tomli_w

if TYPE_CHECKING:
    from areal_sdk.config import Config
    from areal_sdk.loop.learning.state import RunSummary
    from areal_sdk.rollout.evaluation import EvalReport
    from areal_sdk.telemetry import RunDir

NUM_NOTICES = 8
NO_HELD_OUT = "there are no held-out tasks (--eval-tasks FILE.jsonl)"


def print_settings(config: "Config") -> None:
    """Print the resolved settings as TOML that `--config` accepts."""
    from areal_sdk.config.tables import as_written

    values = as_written(config.model_dump(mode="json", exclude_none=True))
    click.echo(tomli_w.dumps(values).rstrip())


def print_plan(config: "Config") -> None:
    """`--dry-run`: the settings as the run would have them."""
    print_settings(config)
    found = "settings, plugins, model, agent and tasks were found"
    click.echo(f"ok: {found}; nothing was started or played", err=True)


def print_summary(summary: "RunSummary") -> None:
    """Print the figures before and after training, the place of the run, and the way to go on."""
    from areal_sdk.telemetry.live.terminal import clock, counted

    if summary.before or summary.after:
        click.echo()
        values = summary.to_json()
        for line in before_and_after(values["before"], values["after"]):
            click.echo(line)
    training, is_resumed = summary.train_seconds, summary.elapsed_s < summary.train_seconds
    in_all = "" if is_resumed or summary.had_ended else f", {clock(summary.elapsed_s)} in all"
    steps = counted(summary.steps, "step")
    click.echo(f"\n{steps} in {clock(training)} of training{in_all}; ended: {summary.ended}")
    click.echo(f"run directory: {summary.run_dir}")
    from areal_sdk.telemetry import RunDir

    run_dir = RunDir(Path(summary.run_dir))
    if run_dir.report.is_file():
        click.echo(f"report: {run_dir.report}")
    for line in best_weights(run_dir):
        click.echo(line)
    for warning in summary.warnings:
        click.echo(f"warning: {warning}")
    for line in notice_lines(run_dir):
        click.echo(line)
    for line in verdict_lines(run_dir):
        click.echo(line)
    if summary.ended == "interrupted":
        click.echo(summary.lost)
        click.echo(f"go on with: {run_dir.how_to_resume()}")
        return
    was_measured = bool(summary.before or summary.after or summary.had_ended)
    for line in what_next(run_dir, was_measured=was_measured):
        click.echo(line)


def verdict_lines(run_dir: "RunDir") -> Iterator[str]:
    """The verdict on the run. If the verdict finds nothing missing, the first fault that the episodes show."""
    from areal_sdk.records.diagnosis.verdict import verdict_of_run
    from areal_sdk.records.diagnosis.why import why

    if (verdict := verdict_of_run(run_dir)) is None:
        return
    yield f"verdict: {verdict}"
    faults = why(run_dir).findings if verdict.missing is None else ()
    hidden = [one for one in faults if not one.costs_time and "solved" not in one.fault]
    for fault in hidden[:1]:
        yield f"and yet {fault}: {fault.cure}"
    if hidden or verdict.missing is not None:
        yield f"look for faults: areal-sdk why {shlex.quote(str(run_dir.path))}"


def notice_lines(run_dir: "RunDir") -> list[str]:
    """Notices that the run gave its user: each notice once, the latest ones."""
    from areal_sdk.telemetry.metrics import told

    notices = told(run_dir.read_history())
    lines = [
        f"{one['level']}, step {one['step']}{_times(one['times'])}: {one['text']}"
        for one in notices[-NUM_NOTICES:]
    ]
    left_out = len(notices) - len(lines)
    return lines if not left_out else [f"{left_out} earlier notices: --json has them", *lines]


def _times(count: int) -> str:
    return "" if count == 1 else f" and {count - 1} times later"


def best_weights(run_dir: "RunDir") -> list[str]:
    """The step whose weights the run keeps as its best, and the reason; and weights that may be better."""
    from areal_sdk.telemetry.run_dir import BEST, WAITING, read_measured, scores_of

    lines = []
    best = read_measured(run_dir.checkpoints / BEST)
    if best is not None:
        step = f"step {best['step']}" if best["step"] else "those before training"
        lines.append(f"best weights: {step}{_chosen(best.get('by', ''))}: {scores_of(best)}")
        if not best["step"] and run_dir.read_steps():
            path = shlex.quote(str(run_dir.path))
            lines.append(f"the last weights: areal-sdk export {path} --last --to DIR")
    waiting = read_measured(run_dir.checkpoints / WAITING)
    if waiting is not None:
        span = f"v{waiting['from_version']}-v{waiting['to_version']}"
        lines.append(
            f"step {waiting['step']} looked better, {scores_of(waiting)}, while its weights changed "
            f"({span}): it is measured again when the run ends"
        )
    return lines


def _chosen(by: str) -> str:
    """The reason why weights are the best, in words for a value of `Measured.by`."""
    match by:
        case "":
            return ", the only ones measured"
        case "order":
            return ", the latest of equal ones"
        case _:
            return f", by {by}"


def what_next(run_dir: "RunDir", *, was_measured: bool) -> list[str]:
    """The commands to try after a run: show its newest trained episode, evaluate its weights."""
    config = run_dir.read_config()
    path = shlex.quote(str(run_dir.path))
    commands = []
    episodes = run_dir.list_episodes()
    newest = next((e for e in episodes if e.split == "train" and e.dropped is None), None)
    if newest is not None:
        commands.append(f"areal-sdk inspect {path} --episode {shlex.quote(newest.id)}")
    if any(
        config.get(name) for name in ("agent", "env", "command")
    ):  # none if callers or an object played
        settings = shlex.quote(str(run_dir.config))
        # Without held-out tasks its settings name the training tasks alone.
        has_only_file = not config.get("eval_tasks") and Path(config.get("tasks") or "").is_file()
        held_out = " --tasks HELD_OUT.jsonl" if has_only_file else ""
        commands.append(f"areal-sdk eval --config {settings} --model {path}{held_out}")
    lines = [f"{'next:' if not i else '':6}{command}" for i, command in enumerate(commands)]
    is_unmeasured = not was_measured and config.get("eval", {}).get("after")
    from_data = config.get("finetune", {}).get("objective")
    if is_unmeasured and not config.get("serve", {}).get("learn") and not from_data:
        lines.insert(0, f"nothing was measured: {NO_HELD_OUT}")
    return lines


def print_reports(reports: Mapping[str, "EvalReport"]) -> None:
    """Print a row for each evaluation of a model, such as before and after."""
    rows: list[tuple[str, ...]] = [
        ("model", "success", "95 % interval", "reward", "pass@k", "tasks", "not scored")
    ]
    for name, report in reports.items():
        rows.append(_row(name, report))
        rows += [_row(f"  {source}", part) for source, part in report.by_source.items()]
    for line in table(rows):
        click.echo(line)
    for name, report in reports.items():
        if report.uncalled:
            click.echo(f"warning: {name}: {report.uncalled}", err=True)
        if report.signal:
            click.echo(f"{name}: {report.signal}", err=True)
        for kind, message in report.first_errors.items():
            what = message if message.startswith(kind) else f"{kind}: {message}"
            click.echo(f"first error: {what}", err=True)


def _row(name: str, report: "EvalReport") -> tuple[str, ...]:
    success, reward = report.success, report.reward
    return (
        name,
        f"{success.value:.3f}" if success else "-",
        f"{success.low:.3f} .. {success.high:.3f}" if success else "-",
        f"{reward.value:.3f}" if reward else "-",
        " ".join(f"@{k}={e.value:.2f}{_over(report, k)}" for k, e in report.pass_at.items()) or "-",
        report.of_tasks,
        " ".join(f"{kind}: {n}" for kind, n in report.errors.items()) or "0",
    )


def _over(report: "EvalReport", k: int) -> str:
    """The number of tasks that have k scored attempts, which pass@k is computed from; empty if all have."""
    num = report.pass_tasks.get(k)
    return "" if num is None else f" ({num} task{'s' if num > 1 else ''})"


def before_and_after(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """A table of success and reward, before and after, with a row for every split that was measured."""
    rows: list[tuple[str, ...]] = [
        ("split", "tasks", "success before", "after", "reward before", "after")
    ]
    for split in {**before, **after}:
        old, new = before.get(split, {}), after.get(split, {})
        rows.append(
            (
                split,
                _of_tasks({**old, **new}),
                _rate(old, "success"),
                _rate(new, "success"),
                _rate(old, "reward"),
                _rate(new, "reward"),
            )
        )
        rows += _sources(old, new)
    return table(rows)


def _sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each source of tasks that the metrics name."""
    rows: list[tuple[str, ...]] = []
    for key in {**old, **new}:
        if key.startswith("source/") and key.endswith("/tasks"):
            source = key.removesuffix("/tasks")
            rows.append(
                (
                    f"  {source.removeprefix('source/')}",
                    _of_tasks({"tasks": new.get(key, old.get(key, 0))}),
                    *(_rate(old, f"{source}/success"), _rate(new, f"{source}/success")),
                    *(_rate(old, f"{source}/reward"), _rate(new, f"{source}/reward")),
                )
            )
    return rows


def _of_tasks(metrics: Mapping[str, Any]) -> str:
    tasks, available = metrics.get("tasks", 0), metrics.get("available")
    is_sample = available is not None and available != tasks
    return f"{tasks:.0f} of {available:.0f}" if is_sample else f"{tasks:.0f}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns, the first row as a header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def _rate(metrics: Mapping[str, Any], name: str) -> str:
    if name not in metrics:
        return "-"
    if f"{name}_low" not in metrics:  # the rewards were all equal: nothing bounds their mean
        return f"{metrics[name]:.2f}"
    low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
    return f"{metrics[name]:.2f} [{low:.2f}, {high:.2f}]"
