"""`areal-sdk probe`: is it learnable, before it is trained?"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from areal_sdk.command import (
    PlayingCommand,
    given_settings,
    player_options,
    setting_options,
    task_options,
)

if TYPE_CHECKING:
    from areal_sdk_probe.advice import Advice
    from areal_sdk_probe.figures import Figures
    from areal_sdk_probe.playing import Played

WIDTH = 11
"""Characters of the names on the left."""


@click.command(cls=PlayingCommand)
@click.argument("agent", required=False)
@click.option("--model", help="A directory, a hub id, `smollm2`, `tiny`, or a run directory.")
@task_options
@click.option("--reward", "rewards", multiple=True, help="A reward's name, or NAME=WEIGHT.")
@player_options
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Load this plugin too.")
@click.option("--steps", type=click.IntRange(1), help="Steps of the run to come.")
@click.option("--seed", type=int, help="Seed of the sample of tasks.")
@click.option("--split", default="train", show_default=True, help="The split of the tasks.")
@click.option(
    "--groups",
    "num_groups",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Tasks to play, rollout.group_size attempts each; fewer than 16 give no verdict on them.",
)
@click.option(
    "--replays",
    "num_replays",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Times that the same answers are played and scored again.",
)
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def probe(
    agent: str | None,
    rewards: tuple[str, ...],
    plugins: tuple[str, ...],
    split: str,
    num_groups: int,
    num_replays: int,
    file: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> None:
    """Play AGENT's tasks in groups, train nothing, and say what to change first.

    \b
    areal-sdk probe my_agent.py --model smollm2
    areal-sdk probe my_agent.py --config run.toml --steps 200
    """
    import orjson

    from areal_sdk.settings import read_settings
    from areal_sdk_probe.advice import advice_on
    from areal_sdk_probe.figures import figures_of
    from areal_sdk_probe.playing import play

    played = play(
        agent,
        read_settings(file, settings, given_settings(None, rewards, plugins, flags)),
        split=split,
        num_groups=num_groups,
        num_replays=num_replays,
        quiet=as_json,
    )
    figures = figures_of(played)
    advice = advice_on(played, figures)
    if as_json:
        document = _document(played, figures, advice)
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        for line in _lines(played, figures, advice):
            click.echo(line)
    if not played.report.num_scored:
        raise SystemExit(1)


def _document(
    played: "Played", figures: "Figures", advice: Sequence["Advice"]
) -> Mapping[str, Any]:
    from dataclasses import asdict

    from areal_sdk_probe.advice import hours, is_learnable

    settings = played.run.settings
    steps = settings["run"]["steps"]
    return {
        "learnable": is_learnable(figures),
        "advice": [asdict(one) for one in advice],
        "report": played.report.metrics(),
        "figures": figures.to_json(),
        "time": {"steps": steps, "sampling_h": hours(settings, figures, steps)},
        "run_dir": str(played.run.path),
    }


def _lines(played: "Played", figures: "Figures", advice: Sequence["Advice"]) -> Iterator[str]:
    for name, told in _figures(played, figures):
        yield f"{name:{WIDTH}}{told}"
    yield ""
    if not advice:
        yield f"{'change':{WIDTH}}nothing: begin the run"
    for number, one in enumerate(advice):
        yield f"{'also' if number else 'change':{WIDTH}}{one.fault}: {one.found}"
        for line in (*one.evidence, one.change):
            yield f"{'':{WIDTH}}{line}"
    path = shlex.quote(str(played.run.path))
    yield f"{'episodes':{WIDTH}}areal-sdk inspect {path} --worst 5"


def _figures(played: "Played", figures: "Figures") -> Iterator[tuple[str, str]]:
    report, groups, noise = played.report, figures.groups, figures.noise
    size = played.run.settings["rollout"]["group_size"]
    yield "success", f"{report.success or '-'}, {report.of_tasks} tasks of {size} attempts each"
    yield "reward", f"{report.reward or '-'}"
    yield (
        "groups",
        f"{groups.differing} of {groups.compared} differ in their rewards, by {groups.spread:.2g} within a group",
    )
    yield (
        "tasks",
        f"{groups.too_hard:.0%} too hard (never solved), {groups.too_easy:.0%} too easy (always solved), "
        f"{groups.repeated:.0%} repeated",
    )
    yield "noise", _noise(noise)
    yield (
        "episode",
        "; ".join(
            f"{name} {' / '.join(f'{value:.3g}' for value in found.values())}"
            for name, found in figures.lengths.items()
        )
        + " (50, 90, 99 % of them have at most so much)",
    )
    yield "limit", f"{figures.truncated:.0%} of the episodes were cut"
    if figures.tools_offered:
        yield (
            "tools",
            f"{figures.tools_called} of {figures.tools_offered} turns made a call that parsed",
        )
    yield "forks", _counts(figures.forks)
    yield "errors", _counts(figures.errors)
    yield "time", _time(played, figures)


def _noise(noise: Any) -> str:
    if not noise.replays:
        return "not measured (--replays)"
    told = (
        f"{noise.unequal} of {noise.compared} answers earned another reward in {noise.replays} replays, by "
        f"{noise.spread:.2g}: {noise.share:.0%} of the differences within groups"
    )
    return told + (f"; {noise.lost} replays left their record" if noise.lost else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _time(played: "Played", figures: "Figures") -> str:
    from areal_sdk_probe.advice import hours

    settings = played.run.settings
    steps, warm_up = settings["run"]["steps"], settings["sft"]["steps"]
    told = (
        f"{hours(settings, figures, steps):.2g} h of sampling for {steps} steps of {settings['rollout']['batch']} episodes, "
        f"at {figures.episodes_per_s:.3g} episodes/s; the trainer works meanwhile (areal-sdk plan --from RUN has both)"
    )
    if warm_up:
        told += (
            f"; sft.steps = {warm_up} come first, and were not made: probe the weights after them"
        )
    return told
