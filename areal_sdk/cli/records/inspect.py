"""`areal-sdk inspect`: a run directory for people, live or a year later."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from areal_sdk.records.selection import Order, Selection
    from areal_sdk.telemetry import EpisodeSummary, RunDir

NUM_EPISODES = 8
NUM_CHARACTERS = 60
"""Number of characters that the list of episodes shows of an episode's last answer."""
SILENCE_S = 30.0
"""Seconds of silence after which a run hangs: `live.json` is written every second or so."""

STEP_NUMBERS = (
    "step",
    "version",
    "train_seconds",
    "sampled_per_s",
    "batch/reward",
    "batch/success",
    "batch/turns",
    "batch/called_tools",
    "batch/sampled_tokens",
    "batch/staleness_max",
    "train/loss",
    "train/grad_norm",
    "train/step_s",
)
"""The metrics that the table of steps shows; `--json` has all."""
WHEN_RECORDED = (
    "a session is written when it has its reward, or when it has ended (by itself after serve.idle_s) "
    "and serve.reward_wait_s has passed; the rest when the server stops"
)
EVAL_NUMBERS = ("tasks", "success", "success_low", "success_high", "reward")


@click.command(name="inspect")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--episode", "episode_id", metavar="ID", help="One episode, token by token.")
@click.option(
    "--raw", is_flag=True, help="With --episode: the prompts as the model read them, and logprobs."
)
@click.option(
    "--episodes",
    "num_episodes",
    type=click.IntRange(1),
    default=NUM_EPISODES,
    show_default=True,
    help="List this many of the newest episodes.",
)
@click.option("--best", type=click.IntRange(1), metavar="N", help="List those rewarded best.")
@click.option("--worst", type=click.IntRange(1), metavar="N", help="List those rewarded worst.")
@click.option("--group", metavar="ID", help="List the attempts of this group.")
@click.option(
    "--where", metavar="CONDITION", help="List those of a condition: 'reward < 0.5 and step == 3'."
)
@click.option("--report", is_flag=True, help="Write RUN/report.html as the run is now.")
@click.option("--live", is_flag=True, help="Show what the run is doing now, and what it waits for.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect(
    run: Path,
    episode_id: str | None,
    raw: bool,
    num_episodes: int,
    best: int | None,
    worst: int | None,
    group: str | None,
    where: str | None,
    report: bool,
    live: bool,
    as_json: bool,
) -> None:
    """Look into the run directory RUN.

    \b
    areal-sdk inspect runs/calculator-20261121-101500
    areal-sdk inspect runs/calculator-20261121-101500 --episode ID
    areal-sdk inspect runs/calculator-20261121-101500 --worst 5 --where "split == eval"
    """
    from areal_sdk.records.selection import Selection
    from areal_sdk.telemetry import RunDir

    if raw and episode_id is None:
        raise click.UsageError("--raw shows one episode: name it with --episode ID")
    if best and worst:
        raise click.UsageError("--best and --worst: give one of them")
    run_dir = RunDir.open(run)
    order: Order = "best" if best else "worst" if worst else "newest"
    chosen = Selection(best or worst or num_episodes, order, group, where)
    if report:
        from areal_sdk.records.report import write_report

        click.echo(write_report(run_dir))
    elif episode_id is not None:
        _show_episode(run_dir, episode_id, raw=raw, as_json=as_json)
    elif live:
        _show_live(run_dir, as_json=as_json)
    elif (best or worst or group or where) and not as_json:
        _show_episodes(run_dir, chosen)
    else:
        _show_run(run_dir, chosen, as_json=as_json)


def _show_episodes(run_dir: "RunDir", chosen: "Selection") -> None:
    from areal_sdk.cli.summary import table

    episodes = chosen.of(run_dir)
    if not episodes:
        click.echo("no episode is like that")
        return
    for line in table(_episode_rows(episodes, kept="-")):
        click.echo(line.rstrip())
    _say_what_next(run_dir, episodes, chosen)


def _show_run(run_dir: "RunDir", chosen: "Selection", *, as_json: bool) -> None:
    episodes = chosen.of(run_dir)
    if as_json:
        print_json({**_as_json(run_dir), "episodes": [one._asdict() for one in episodes]})
        return
    from areal_sdk.cli.summary import table

    config, steps = run_dir.read_config(), run_dir.read_steps()
    click.echo(_title(run_dir, config, len(steps)))
    for line in (*_lines_of_steps(config, steps), *_lines_of_history(run_dir)):
        click.echo(line)
    only_records = _only_records(config)
    if not episodes:
        click.echo(f"no episodes yet{f': {WHEN_RECORDED}' if only_records else ''}")
        return
    for line in table(_episode_rows(episodes, kept="recorded" if only_records else "-")):
        click.echo(line.rstrip())
    _say_what_next(run_dir, episodes, chosen)


def _as_json(run_dir: "RunDir") -> dict[str, Any]:
    from areal_sdk.records.diagnosis.verdict import verdict_of_run
    from areal_sdk.telemetry.metrics import told
    from areal_sdk.telemetry.run_dir import BEST, read_measured

    return {
        "path": str(run_dir.path),
        "config": run_dir.read_config(),
        "plugins": run_dir.read_plugins(),
        "steps": run_dir.read_steps(),
        "evaluations": run_dir.read_history(kind="eval"),
        "best": read_measured(run_dir.checkpoints / BEST),
        "verdict": verdict_of_run(run_dir),
        "notices": told(run_dir.read_history()),
        "ledger": run_dir.read_ledger(),
    }


def _title(run_dir: "RunDir", config: Mapping[str, Any], num_steps: int) -> str:
    """The first line: who played on which model, and how far the run came."""
    from areal_sdk.telemetry.live.terminal import counted

    an_object = run_dir.read_call().get("agent", "?")
    is_called = _only_records(config) or config.get("serve", {}).get("learn")
    who_else = "callers" if is_called else an_object
    played = config.get("agent") or config.get("env") or config.get("command") or who_else
    objective = config.get("finetune", {}).get("objective")
    what = objective.replace("_", "-") if objective else played
    model = config.get("serve", {}).get("upstream") or config.get("model", "?")
    measured = "measured" if run_dir.only_measured() else counted(num_steps, "step")
    return f"{run_dir.path}: {what} on {model}, {'recorded' if _only_records(config) else measured}"


def _lines_of_steps(config: Mapping[str, Any], steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the course of the reward (of the loss in fine-tuning), the last step, and the course of sources and outcomes."""
    from areal_sdk.telemetry.live.terminal import curve
    from areal_sdk.telemetry.metrics import cold_start

    if not steps:
        return
    is_tuned = bool(config.get("finetune", {}).get("objective"))
    values = [step.get("train/loss" if is_tuned else "batch/reward") for step in steps]
    first, last = _first(values), _first(reversed(values))
    name = "loss" if is_tuned else "reward"
    yield f"{name:9}  {first} -> {last}  {curve(values, width=48)}"
    yield f"last step  {_numbers(steps[-1], only=STEP_NUMBERS)}"
    if shares := _shares(steps):
        yield f"shares     {shares}"
    if rewards := _first_and_last(steps, "batch/source/", "/reward"):
        yield f"by source  {rewards}"
    if outcomes := _first_and_last(steps, "batch/outcome/"):
        yield f"outcome    {outcomes}"
    if never_called := cold_start(steps):
        yield f"note       {never_called}"


def _lines_of_history(run_dir: "RunDir") -> Iterator[str]:
    """Resumes, evaluations, verdict, notices, and what became of the episodes."""
    from areal_sdk.cli.summary import best_weights, notice_lines
    from areal_sdk.records.diagnosis.verdict import verdict_of_run

    if lost := run_dir.lost_metrics():
        yield f"warning    {lost}"
    for resume in run_dir.read_metrics(kind="resume"):
        changed = [f"{key} = {new} (was {old})" for key, (old, new) in resume["changed"].items()]
        yield "  ".join([f"resumed    after step {resume['step']}", *changed])
    for evaluation in run_dir.read_history(kind="eval"):
        numbers = _numbers(evaluation, only=_eval_numbers(evaluation))
        name = f"{evaluation['name']}: {evaluation['split']}"
        yield f"eval       {name}: {numbers}  {_weights(evaluation)}"
    yield from best_weights(run_dir)
    if verdict := verdict_of_run(run_dir):
        yield f"verdict    {verdict}"
    yield from notice_lines(run_dir)
    if ledger := run_dir.read_ledger():
        yield f"episodes   {_books(ledger, is_running=run_dir.is_in_use())}"
    if deleted := run_dir.num_deleted():
        yield f"deleted    the oldest {deleted:,} episodes (run.keep_episodes)"


def _shares(steps: "Sequence[dict[str, Any]]") -> str:
    """The shares of a mixture under a curriculum, at the first step and at the last."""
    from areal_sdk.telemetry.live.terminal import shares_line, source_shares

    first, last = (source_shares(step) for step in (steps[0], steps[-1]))
    return shares_line(first) + (f" -> {shares_line(last)}" if last != first else "")


def _first_and_last(steps: "Sequence[dict[str, Any]]", before: str, after: str = "") -> str:
    """The metrics named `before`NAME`after`, at the first step that has them and at the last."""
    found: dict[str, list[float]] = {}
    for step in steps:
        for key, value in step.items():
            if key.startswith(before) and key.endswith(after):
                name = key.removeprefix(before).removesuffix(after)
                found.setdefault(name, []).append(value)
    means = [f"{name} {values[0]:.4g} -> {values[-1]:.4g}" for name, values in found.items()]
    return "  ".join(means)


def _say_what_next(
    run_dir: "RunDir", episodes: "Sequence[EpisodeSummary]", chosen: "Selection"
) -> None:
    one = f"areal-sdk inspect {shlex.quote(str(run_dir.path))} --episode "
    click.echo(f"\none of them, token by token: {one}{shlex.quote(episodes[0].id)}")
    count = chosen.count
    if count is not None and len(episodes) == count:
        option = "episodes" if chosen.order == "newest" else chosen.order
        click.echo(f"these are the {chosen.order} {count}; more: --{option} {10 * count}")


def _show_live(run_dir: "RunDir", *, as_json: bool) -> None:
    from areal_sdk.errors import ConfigError
    from areal_sdk.telemetry.live.terminal import RunStatus, render
    from areal_sdk.telemetry.live.waits import wait_length

    values = run_dir.read_live()
    if values is None and _only_records(run_dir.read_config()):
        raise ConfigError(
            f"{run_dir.path} holds sessions and no training, and --live shows only training; try: "
            f"areal-sdk inspect {shlex.quote(str(run_dir.path))}"
        )
    if values is None:
        raise ConfigError(f"{run_dir.path} has no live.json: the run has not started to train yet")
    age_s = time.time() - run_dir.live.stat().st_mtime
    if as_json:
        print_json({**values, "age_s": round(age_s, 1), "is_running": run_dir.is_in_use()})
        return
    for line in render(RunStatus.from_json(values), width=100):
        click.echo(line)
    for wait in values.get("waits", ()):
        click.echo(f"  {wait_length(wait['waited_s'], wait['timeout_s']):>18}  {wait['name']}")
    click.echo(_as_of(run_dir, age_s, step=values["step"], total_steps=values["total_steps"]))


def _as_of(run_dir: "RunDir", age_s: float, *, step: int, total_steps: int) -> str:
    """The age of the live view, and whether the run hangs or has ended."""
    if run_dir.is_in_use():
        return f"as of {age_s:.0f} s ago" + (": it hangs" if age_s > SILENCE_S else "")
    if total_steps and step >= total_steps:
        return f"ended {age_s:.0f} s ago: steps"
    return f"ended {age_s:.0f} s ago, at step {step}; go on with: {run_dir.how_to_resume()}"


def _show_episode(run_dir: "RunDir", episode_id: str, *, raw: bool, as_json: bool) -> None:
    record = run_dir.find_episode(episode_id)
    if as_json:
        print_json(record)
        return
    from areal_sdk.cli.records.episode import as_ids, episode_lines, find_decoder, raw_lines

    model = str(run_dir.read_config().get("model", ""))
    decode = find_decoder(run_dir.model, run_dir.checkpoints / "best", model)
    if decode is None and any(turn.num_tokens for turn in record.episode.turns):
        missing = f"the tokenizer of {model or 'the model'} is not on this machine: ids are shown"
        cure = f"copy its config.json and tokenizer.json to {run_dir.model}"
        click.echo(f"{missing}; to see text, {cure}", err=True)
    show = raw_lines if raw else episode_lines
    for line in show(record, decode or as_ids):
        click.echo(line)


def _only_records(config: Mapping[str, Any]) -> bool:
    """Whether the run is one of `serve` that keeps sessions and learns nothing from them."""
    serve = config.get("serve", {})
    return bool(serve.get("record") or serve.get("upstream")) and not serve.get("learn")


def _episode_rows(episodes: "Sequence[EpisodeSummary]", *, kept: str) -> list[tuple[str, ...]]:
    from areal_sdk.cli.records.episode import printable

    rows: list[tuple[str, ...]] = [
        (
            "episode",
            "split",
            "task",
            "turns",
            "tokens",
            "reward",
            "advantage",
            "version",
            "fate",
            "text",
        )
    ]
    for e in episodes:
        fate = f"dropped: {e.dropped}" if e.dropped else kept
        if e.step is not None:
            fate = f"step {e.step}"
        rows.append(
            (
                e.id,
                e.split,
                e.task_id,
                str(e.num_turns),
                str(e.num_tokens),
                "-" if e.reward is None else f"{e.reward:.2f}",
                "-" if e.advantage is None else f"{e.advantage:+.2f}",
                "-" if e.version is None else str(e.version),
                f"{fate} ({e.error})"[:60] if e.error else fate,
                printable(e.text)[:NUM_CHARACTERS],
            )
        )
    return rows


def _books(ledger: dict[str, Any], *, is_running: bool) -> str:
    running = "running" if is_running or not ledger["running"] else "cut off with the run"
    dropped = ", ".join(f"{reason} {n}" for reason, n in ledger["dropped"].items() if n)
    return (
        f"started {ledger['started']} = {running} {ledger['running']} + buffered "
        f"{ledger['buffered']} + trained {ledger['trained']} + dropped ({dropped or 'none'})"
    )


def _numbers(values: dict[str, Any], *, only: tuple[str, ...]) -> str:
    found = [(key, values[key]) for key in only if isinstance(values.get(key), (int, float))]
    return "  ".join(f"{key.removeprefix('batch/')} {value:.4g}" for key, value in found)


def _eval_numbers(evaluation: dict[str, Any]) -> tuple[str, ...]:
    return (*EVAL_NUMBERS, *(key for key in evaluation if key.startswith("outcome/")))


def _weights(evaluation: dict[str, Any]) -> str:
    """The versions that an evaluation measured: several, if training went on beside it."""
    first, last = evaluation.get("from_version"), evaluation.get("to_version")
    return f"v{first}" if first == last else f"v{first}-v{last}"


def _first(values: Any) -> str:
    return next((f"{value:.3f}" for value in values if value is not None), "-")


def print_json(value: object) -> None:
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    click.echo(orjson.dumps(value, option=options).decode())
