"""`areal-sdk plan`: predicts the speed of N GPUs and how to split them, before they are paid for."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from areal_sdk import ConfigError

if TYPE_CHECKING:
    from areal_sdk_plan.calibration.speeds_of_runs import Calibration
    from areal_sdk_plan.splits import LargerBatch, Split
    from areal_sdk_plan.sureness import Sureness

    Found = Sequence[tuple[Split, LargerBatch, Sureness]]

DEFAULT_GPUS = (2, 8, 64)

_EVERY_S = 10.0
"""Seconds between two lines of progress where there is no terminal."""

_MOST_MEASURED = 1e12
"""Tokens a second beyond which a measured rate must be a typing error."""


class _Finite(click.FloatRange):
    """A number in a range, neither NaN nor infinite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


@click.command(name="plan")
@click.option(
    "--from",
    "runs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Calibrate from this run; several runs of one model and machine fit better.",
)
@click.option(
    "--model", help="Without a run: a model, its directory, or a size: 1.5B, 7B, 32B, 70B."
)
@click.option("--gpu", default="h100", show_default=True, help="Its name: a100, h800, mi300x, ...")
@click.option("--gpus", type=click.IntRange(1), multiple=True, help="How many; may be repeated.")
@click.option("--price", type=_Finite(min=0), help="Dollars of a GPU hour.")
@click.option(
    "--batch", type=click.IntRange(1), help="Episodes a step; default: the run's, or 512."
)
@click.option(
    "--group-size", type=click.IntRange(1), help="Episodes of a group; default: the run's, or 16."
)
@click.option(
    "--minibatches", type=click.IntRange(1), default=1, show_default=True, help="Updates of a step."
)
@click.option("--eta", type=click.IntRange(0), help="Largest staleness; default: suggested.")
@click.option("--engines", type=click.IntRange(1), help="How many; default: suggested.")
@click.option("--ranks", type=click.IntRange(1), help="GPUs of the trainer; default: suggested.")
@click.option("--sync", is_flag=True, help="Engines and trainer take turns on the same GPUs.")
@click.option("--drain", is_flag=True, help="Running requests end before new weights are served.")
@click.option(
    "--measured",
    metavar="TOKENS@GPUS",
    help="Sampled and trained tokens a second that you measured on so many GPUs, to calibrate the plan.",
)
@click.option("--context", type=click.IntRange(2), default=8192, show_default=True, help="Tokens.")
@click.option("--prompt", type=click.IntRange(1), default=512, show_default=True, help="Tokens.")
@click.option(
    "--output",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Tokens of a turn, the median.",
)
@click.option(
    "--turns", type=click.IntRange(1), default=1, show_default=True, help="Of an episode."
)
@click.option(
    "--tool",
    "tool_s",
    type=_Finite(min=0),
    default=0.0,
    help="Seconds between turns, the median.",
)
@click.option(
    "--tp", type=click.IntRange(1), help="GPUs of an engine; default: the run's, or suggested."
)
@click.option("--slots", type=click.IntRange(1), help="Requests that an engine decodes together.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def plan(
    runs: tuple[Path, ...],
    model: str | None,
    gpu: str,
    gpus: tuple[int, ...],
    price: float | None,
    batch: int | None,
    group_size: int | None,
    minibatches: int,
    eta: int | None,
    engines: int | None,
    ranks: int | None,
    sync: bool,
    drain: bool,
    measured: str | None,
    context: int,
    prompt: int,
    output: int,
    turns: int,
    tool_s: float,
    tp: int | None,
    slots: int | None,
    as_json: bool,
) -> None:
    """Predict tokens a second, staleness, idle time and cost for numbers of GPUs, and suggest the split.

    The whole loop is simulated: staleness gate, groups, turns, tools, batching, new weights, trainer. The
    speeds come from runs (--from), whose lengths and pauses are played again, or from a table of hardware
    (--model, --gpu). docs/scaling.md names every assumption.

    \b
    areal-sdk plan --from runs/calculator-20261121-101500 --gpus 2 --gpus 8
    areal-sdk plan --model 7B --gpu h100 --gpus 64 --context 8192 --price 2.5
    """
    from areal_sdk_plan import parts as sources
    from areal_sdk_plan.splits import Wanted, best_split, larger_batch, with_rules
    from areal_sdk_plan.sureness import sureness_of

    if bool(runs) == bool(model):
        raise ConfigError(
            "give --from RUN, or --model with --gpu: a plan needs speeds, of one kind or the other"
        )
    if sync and (engines or ranks):
        raise ConfigError("--sync uses all GPUs for both parts: leave out --engines and --ranks")
    if runs:
        described = sources.from_runs(runs, tp=tp, slots=slots)
    else:
        size = group_size or sources.GROUP_SIZE
        described = sources.from_hardware(
            str(model),
            gpu,
            workload=sources.Described(prompt, output, turns, tool_s, context, size),
            tp=tp,
            slots=slots,
            minibatches=minibatches,
        )
        batch = batch or sources.BATCH
    calibration = described.calibration
    parts = with_rules(described.parts, batch=batch, group_size=group_size, drains=drain)
    wanted = Wanted(eta, engines, ranks, is_sync=sync)
    with _Progress() as note:
        if measured is not None:
            tokens, at = _measured(measured)
            parts = sources.as_measured(parts, tokens, gpus=at, wanted=wanted, note=note)
        found: list[tuple[Split, LargerBatch, Sureness]] = []
        for num in gpus or DEFAULT_GPUS:
            split = best_split(parts, num, wanted=wanted, note=note)
            sureness = sureness_of(split, calibration, is_measured=measured is not None)
            found.append((split, larger_batch(parts, split), sureness))
    if as_json:
        click.echo(json.dumps(_document(found, described.assumptions, calibration, price)))
        return
    for line in _lines(found, described.assumptions, calibration, price):
        click.echo(line.rstrip())


class _Progress:
    """Tell what is simulated, on the error stream: one line of a terminal, else a line every ten
    seconds."""

    def __enter__(self) -> Callable[[str], None]:
        self._count = 0
        self._is_terminal = sys.stderr.isatty()
        self._told_at = time.monotonic()
        return self._note

    def _note(self, text: str) -> None:
        self._count += 1
        line = f"{self._count} simulated; {text}"
        if self._is_terminal:
            click.echo(f"\r\x1b[K{line}"[:120], err=True, nl=False)
        elif time.monotonic() - self._told_at >= _EVERY_S:
            self._told_at = time.monotonic()
            click.echo(line, err=True)

    def __exit__(self, *_: object) -> None:
        if self._count and self._is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def _measured(text: str) -> tuple[float, int]:
    """The measured tokens a second, and the number of GPUs that gave them.

    >>> _measured("12000@64")
    (12000.0, 64)
    """

    rate, _, gpus = text.partition("@")
    try:
        found = float(rate), int(gpus)
    except ValueError:
        found = 0.0, 0
    if min(found) <= 0 or not found[0] <= _MOST_MEASURED:
        raise ConfigError(f"--measured {text!r} is not TOKENS@GPUS, for example 12000@64")
    return found


def _document(
    found: "Found",
    assumptions: Sequence[str],
    calibration: "Calibration | None",
    price: float | None,
) -> dict[str, Any]:
    plans = [
        {
            **split.to_json(price),
            "larger_batch": {"batch": larger.batch, "gain": larger.gain},
            "error": sureness.error,
            "trained_tokens_per_s_range": _range(split, sureness),
            "doubts": {doubt.reason: doubt.error for doubt in sureness.doubts},
        }
        for split, larger, sureness in found
    ]
    document: dict[str, Any] = {"plans": plans, "assumptions": list(assumptions)}
    if calibration is not None:
        document["recorded"] = {
            "step_s": calibration.measured_step_s,
            "predicted_step_s": calibration.predicted_step_s,
        }
    return document


def _lines(
    found: "Found",
    assumptions: Sequence[str],
    calibration: "Calibration | None",
    price: float | None,
) -> Iterator[str]:
    if calibration is not None:
        yield (
            f"the recorded run: {calibration.measured_step_s:.3g} s a step; simulated as it was: "
            f"{calibration.predicted_step_s:.3g} s"
        )
        yield ""
    header = [
        "GPUs",
        "engines",
        "trainer",
        "eta",
        "batch",
        "in flight",
        "s a step",
        "tokens/s",
        "from",
        "to",
    ]
    header += [] if price is None else ["$ / M tokens"]
    header += ["engines idle", "trainer idle", "staleness", "dropped"]
    rows = [header, *(_row(split, sureness, price) for split, _, sureness in found)]
    yield from _table(rows)
    yield ""
    yield "tokens/s: sampled tokens that are trained. trainer: GPUs. staleness: mean, in versions"
    yield "from, to: where the true figure is likely to be"
    for split, larger, sureness in found:
        why = "; ".join(doubt.reason for doubt in sureness.main_doubts[:2])
        yield f"{split.gpus} GPUs: {sureness.word} ({why})"
        if split.spare:
            yield f"  {split.spare:,} of them have no part in it: a larger batch has work for more"
        if larger.gain:
            yield f"  a batch of {larger.batch} would train {larger.gain:.0%} more tokens a second"
    yield ""
    yield "assumed:"
    for assumption in assumptions:
        yield f"  {assumption}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns, the first row as a header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def _row(split: "Split", sureness: "Sureness", price: float | None) -> list[str]:
    gate, forecast = split.setup.rules.gate, split.forecast
    engines = f"{split.engines} x {split.gpus_per_engine}"
    cells = [
        str(split.gpus),
        engines,
        "the same" if split.is_colocated else str(split.ranks),
        str(gate.max_staleness),
        str(gate.batch),
        str(gate.max_inflight),
        f"{forecast.step_s / split.available:.3g}",
        _rounded(split.tokens_per_s),
        *map(_rounded, _range(split, sureness)),
    ]
    cells += [] if price is None else [f"{split.dollars_per_mtoken(price):.3g}"]
    return [
        *cells,
        f"{forecast.engine_idle:.0%}",
        f"{forecast.trainer_idle:.0%}",
        f"{forecast.mean_staleness:.2f}",
        f"{forecast.dropped_share:.1%}",
    ]


def _range(split: "Split", sureness: "Sureness") -> tuple[float, float]:
    """Lower and upper tokens a second: the true figure is likely between them."""
    factor = 1.0 + sureness.error
    return split.tokens_per_s / factor, split.tokens_per_s * factor


def _rounded(value: float) -> str:
    """A number rounded to the digits that a prediction deserves.

    >>> _rounded(123456.0), _rounded(12.345)
    ('123,000', '12.3')
    """
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 1000 else f"{value:.3g}"
