"""`areal-sdk plan`: what N GPUs will give, and how to split them, before they are paid for."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from areal_sdk.planner.calibration.speeds_of_runs import Calibration
    from areal_sdk.planner.splits import LargerBatch, Split
    from areal_sdk.planner.sureness import Sureness

    Found = Sequence[tuple[Split, LargerBatch, Sureness]]

DEFAULT_GPUS = (2, 8, 64)


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
@click.option("--gpu", default="h100", show_default=True, help="a100, h20, h100, h200 or b200.")
@click.option("--gpus", type=click.IntRange(1), multiple=True, help="How many; may be repeated.")
@click.option("--price", type=click.FloatRange(min=0), help="Dollars of a GPU hour.")
@click.option(
    "--batch", type=click.IntRange(1), help="Episodes a step; default: the run's, or 512."
)
@click.option("--eta", type=click.IntRange(0), help="Largest staleness; default: suggested.")
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
    type=click.FloatRange(min=0),
    default=0.0,
    help="Seconds between turns, the median.",
)
@click.option(
    "--tp", type=click.IntRange(1), help="GPUs of an engine; default: the run's, or the fewest."
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
    eta: int | None,
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
    from areal_sdk.errors import ConfigError
    from areal_sdk.planner import parts as sources
    from areal_sdk.planner.splits import best_split, larger_batch, with_batch
    from areal_sdk.planner.sureness import sureness_of

    if bool(runs) == bool(model):
        raise ConfigError(
            "give --from RUN, or --model with --gpu: a plan needs speeds, of one kind or the other"
        )
    calibration: Calibration | None = None
    if runs:
        described = sources.from_runs(runs, tp=tp, slots=slots)
        calibration = described.calibration
    else:
        described = sources.from_hardware(
            str(model),
            gpu,
            workload=sources.Described(prompt, output, turns, tool_s, context),
            tp=tp,
            slots=slots,
        )
    parts = described.parts if batch is None else with_batch(described.parts, batch)
    found: list[tuple[Split, LargerBatch, Sureness]] = []
    for num in gpus or DEFAULT_GPUS:
        split = best_split(parts, num, eta=eta)
        found.append((split, larger_batch(parts, split), sureness_of(split, calibration)))
    if as_json:
        click.echo(json.dumps(_document(found, described.assumptions, calibration, price)))
        return
    for line in _lines(found, described.assumptions, calibration, price):
        click.echo(line.rstrip())


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
    from areal_sdk.cli.report import table

    if calibration is not None:
        yield (
            f"the recorded run: {calibration.measured_step_s:.3g} s a step; simulated as it was: "
            f"{calibration.predicted_step_s:.3g} s"
        )
        yield ""
    header = ["GPUs", "engines", "trainer", "eta", "batch", "in flight", "s a step", "tokens/s"]
    header += [] if price is None else ["$ / M tokens"]
    header += ["engines idle", "trainer idle", "staleness", "dropped", "sure to"]
    rows = [header, *(_row(split, sureness, price) for split, _, sureness in found)]
    yield from table(rows)
    yield ""
    yield "tokens/s: sampled tokens that are trained. trainer: GPUs. staleness: mean, in versions"
    for split, larger, sureness in found:
        why = "; ".join(doubt.reason for doubt in sureness.main_doubts[:2])
        yield f"{split.gpus} GPUs: {sureness.word} ({why})"
        if larger.gain:
            yield f"  a batch of {larger.batch} would train {larger.gain:.0%} more tokens a second"
    yield ""
    yield "assumed:"
    for assumption in assumptions:
        yield f"  {assumption}"


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
    ]
    cells += [] if price is None else [f"{split.dollars_per_mtoken(price):.3g}"]
    return [
        *cells,
        f"{forecast.engine_idle:.0%}",
        f"{forecast.trainer_idle:.0%}",
        f"{forecast.mean_staleness:.2f}",
        f"{forecast.dropped_share:.1%}",
        f"\N{PLUS-MINUS SIGN}{sureness.error:.0%}",
    ]


def _rounded(value: float) -> str:
    """
    >>> _rounded(123456.0), _rounded(12.345)
    ('123,000', '12.3')
    """
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 1000 else f"{value:.3g}"
