"""The planner's predictions against real runs, and plans from 1 to 1,000 GPUs.

    python benchmarks/plan.py --measure [--only NAME ...]     # plays the runs: about 35 s each
    python benchmarks/plan.py --plan                          # simulates 1 to 1,000 GPUs: minutes
    python benchmarks/plan.py --fit                           # constants of the table of hardware: minutes
    python benchmarks/plan.py --published                     # prints every published figure beside the plan's
    python benchmarks/plan.py --write                         # tables and picture of docs/scaling.md

`--measure` plays `areal-sdk train` with agents/paced.py: servers that sleep, so that three of them fit on
two cores, and tools that sleep; trainer, gateway, gate and buffer are real and compute. The planner is
calibrated on the runs of CALIBRATION and predicts the others from their settings: speeds come from the
calibration, lengths and tool times from the tails that the settings name. Results are kept in
docs/images/plan.json: measured and predicted times, the load of the machine before each run, and how many
threads of other programs competed with it, which the predictions are told.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pictures import Line, Panel, draw, save
from plan_fit import PRIOR, fits
from plan_runs import DOCUMENT, RESULTS, measure, predict
from plan_verdict import published_tables
from tables import table, write_section

from areal_sdk_plan.parts import Described, from_hardware
from areal_sdk_plan.simulation.run import simulate
from areal_sdk_plan.splits import best_split, with_rules

# --- planning ------------------------------------------------------------------------------------------

GPU_COUNTS = (1, 4, 8, 16, 64, 256, 1000)
BATCHES = (512, 2048)
MODELS = ("1.5B", "7B")
SMALL = ((512, 1), (512, 4), (512, 16))
"""Batches and GPUs of the smaller model."""
WORKLOAD = Described(prompt=512, output=1000, turns=1, tool_s=0.0, context=8192)
PRICE = 2.5
"""Dollars of a GPU hour, to show what a plan costs."""


def plans() -> list[dict[str, Any]]:
    """The best split of each number of GPUs, for two models and three batches."""
    rows: list[dict[str, Any]] = []
    for model, batch, gpus in itertools.product(MODELS, BATCHES, GPU_COUNTS):
        described = from_hardware(model, "h100", workload=WORKLOAD)
        if gpus < described.parts.least_ranks or (model != "7B" and (batch, gpus) not in SMALL):
            continue
        began = time.monotonic()
        split = best_split(with_rules(described.parts, batch=batch), gpus)
        took_s = time.monotonic() - began
        rows.append({"model": model, **split.to_json(PRICE), "took_s": took_s})
        print(f"{model}, batch {batch}, {gpus} GPUs: {took_s:.1f} s", flush=True)
    return rows


def simulation_times() -> dict[str, float]:
    """Seconds that 200 steps of 1,000 GPUs take to simulate, by batch."""
    found = {}
    for batch in BATCHES[:2]:
        described = from_hardware("7B", "h100", workload=WORKLOAD)
        setup = with_rules(described.parts, batch=batch).setup
        setup = replace(
            setup, num_engines=700, trainer=replace(setup.trainer, ranks=300)
        ).with_rollout(max_inflight=3 * batch)
        began = time.monotonic()
        simulate(setup, steps=200)
        found[str(batch)] = time.monotonic() - began
    return found


# --- writing -------------------------------------------------------------------------------------------


def write() -> None:
    """Tables and picture of docs/scaling.md, from what is kept."""
    known = json.loads(RESULTS.read_text())
    write_section("plan measured", measured_table(known), document=DOCUMENT)
    write_section("plan published", published_tables(known["fit"]), document=DOCUMENT)
    write_section("plan gpus", gpus_table(known), document=DOCUMENT)
    save(draw("areal-sdk plan", panels(known)), RESULTS.with_suffix(".svg"))


def errors(known: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The predicted seconds of each case, and their relative error."""
    found = {}
    for name, row in known["cases"].items():
        predicted = predict(known["calibration"], row)
        found[name] = (predicted, predicted / row["step_s"] - 1.0)
    return found


def measured_table(known: Mapping[str, Any]) -> str:
    found = errors(known)
    rows = [
        (
            name,
            f"{row['step_s']:.2f} \N{PLUS-MINUS SIGN} {row['noise'] * row['step_s']:.2f}",
            f"{found[name][0]:.2f}",
            f"{found[name][1]:+.0%}",
            row["steps"],
            f"{row['load'][0]:.1f}",
            f"{row['competing']:.1f}",
        )
        for name, row in known["cases"].items()
    ]
    off = sorted(abs(error) for _, error in found.values())
    header = ("run", "s a step", "predicted", "off by", "steps", "load before", "competing threads")
    return (
        f"{table(header, rows)}\n\n{len(off)} configurations: off by {statistics.median(off):.1%} in the "
        f"median, {off[-1]:.1%} at most."
    )


def fit_published() -> None:
    """Fit the constants of the table of hardware, also without each source; the results are kept."""
    known = json.loads(RESULTS.read_text())

    def note(text: str) -> None:
        print(text, flush=True)

    known["fit"] = {
        name: {key: getattr(constants, key) for key in PRIOR}
        for name, constants in fits(note).items()
    }
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def gpus_table(known: Mapping[str, Any]) -> str:
    parts = []
    for model, batch in (("1.5B", 512), ("7B", 512), ("7B", 2048)):
        rows = [
            (
                row["gpus"],
                f"{row['engines']} x {row['gpus_per_engine']}",
                "the same" if row["is_colocated"] else row["trainer_ranks"],
                row["max_staleness"],
                row["max_inflight"],
                f"{row['step_s']:.1f}",
                f"{row['trained_tokens_per_s']:,.0f}",
                f"{row['dollars_per_million_tokens']:.2f}",
                f"{row['engine_idle']:.0%}",
                f"{row['trainer_idle']:.0%}",
                f"{row['mean_staleness']:.1f}",
                f"{row['dropped_share']:.1%}",
            )
            for row in known["plans"]
            if row["model"] == model and row["batch"] == batch
        ]
        header = (
            "GPUs",
            "engines",
            "trainer",
            "eta",
            "in flight",
            "s a step",
            "tokens/s",
            "$ / M tokens",
            "engines idle",
            "trainer idle",
            "staleness",
            "dropped",
        )
        parts.append(f"{model}, {batch} episodes a step:\n\n{table(header, rows)}")
    took = ", ".join(f"{s:.1f} s with {b} episodes a step" for b, s in known["simulation"].items())
    parts.append(f"To simulate 200 steps of 1,000 GPUs takes {took} (one core of a busy machine).")
    return "\n\n".join(parts)


def panels(known: Mapping[str, Any]) -> list[Panel]:
    rows = [row for row in known["plans"] if row["model"] == "7B"]
    counts = sorted({row["gpus"] for row in rows})
    best = max(row["trained_tokens_per_s"] / row["gpus"] for row in rows)

    def line(name: str, batch: int, value: Callable[[dict[str, Any]], float]) -> Line:
        by_gpus = {row["gpus"]: value(row) for row in rows if row["batch"] == batch}
        return Line(name, [by_gpus[count] for count in counts])

    places = [str(count) for count in counts]
    found = errors(known)
    longest = max(max(row["step_s"], found[name][0]) for name, row in known["cases"].items())
    ordered = sorted(known["cases"].items(), key=lambda item: item[1]["step_s"])
    cases = Panel(
        f"seconds a step of {len(ordered)} runs, of {longest:.1f} s",
        ["" for _ in ordered],
        [
            Line("measured", [row["step_s"] / longest for _, row in ordered]),
            Line("predicted", [found[name][0] / longest for name, _ in ordered]),
        ],
    )
    rate = [
        line(f"batch {b}", b, lambda row: row["trained_tokens_per_s"] / row["gpus"] / best)
        for b in BATCHES
    ]
    idle = [
        line("engines", 2048, lambda row: row["engine_idle"]),
        line("trainer", 2048, lambda row: row["trainer_idle"]),
    ]
    share = [line(f"batch {b}", b, lambda row: row["trainer_ranks"] / row["gpus"]) for b in BATCHES]
    return [
        cases,
        Panel("7B: tokens/s of a GPU, against the best", places, rate),
        Panel("7B, batch 2048: part of the time idle", places, idle),
        Panel("7B: part of the GPUs that train", places, share),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.only)
    if arguments.plan:
        known = json.loads(RESULTS.read_text())
        known["plans"], known["simulation"] = plans(), simulation_times()
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    if arguments.fit:
        fit_published()
    if arguments.published:
        print(published_tables(json.loads(RESULTS.read_text())["fit"]))
    if arguments.write:
        write()


if __name__ == "__main__":
    main()
