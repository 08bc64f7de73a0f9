"""The speeds of a run's parts, estimated from recorded runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from areal_sdk import ConfigError, Run
from areal_sdk.flow import FlowRules, RolloutSection
from areal_sdk_plan.calibration.engine_fit import fit_above_zero, fit_engine
from areal_sdk_plan.calibration.recorded import WARM_STEPS, Floats, RecordedRun
from areal_sdk_plan.simulation.run import expected_step_s
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import EngineSpeed, Machine, TrainerSpeed


@dataclass(frozen=True, slots=True)
class Calibration:
    """A run as a setup of the simulation, and what it was seen to do."""

    setup: Setup
    runs: tuple[RecordedRun, ...]
    most_together: float
    """The highest mean number of requests that one server was seen to decode together."""
    most_ranks: int
    notes: tuple[str, ...]
    """The assumptions about everything that the runs do not say."""

    predicted_step_s: float
    """Seconds per step of the first run in the simulation, simulated as the run was."""

    @property
    def own_error(self) -> float:
        """Relative difference between the first run and its simulation."""
        return abs(self.predicted_step_s / self.measured_step_s - 1.0)

    @property
    def measured_step_s(self) -> float:
        """Seconds per step of the first run, as measured."""
        return self.runs[0].step_s


def calibrate(
    paths: Sequence[Path], *, engines: int | None = None, slots: int | None = None
) -> Calibration:
    """Fit all runs together; rules and workload are those of the first.

    The runs may differ in everything but the machine and the model. `engines` says how many servers
    the first run had, `slots` how many requests each decodes together, where its settings do not.
    """
    runs = tuple(RecordedRun.read(Run(path)) for path in paths)
    notes: list[str] = []
    counts = [_num_engines(run) for run in runs]
    if engines is not None:
        counts[0] = engines
    engine, together = fit_engine(runs, counts, notes, slots=slots)
    trainer = fit_trainer(runs, notes)
    first = runs[0]
    machine = _machine(runs, engine, trainer, counts)
    setup = Setup(
        rules=rules_of(first.config),
        workload=first.workload,
        engine=engine,
        trainer=trainer,
        num_engines=counts[0],
        machine=machine,
    )
    ranks = max(int(_of(run.config, "trainer", "ranks", 1)) for run in runs)
    steps = WARM_STEPS + len(first.steps) - 1
    predicted_s = expected_step_s(setup, steps=min(steps, MOST_STEPS), warm=WARM_STEPS)
    return Calibration(setup, runs, together, ranks, tuple(notes), predicted_s)


MOST_STEPS = 100
"""Maximum number of steps that are simulated of a recorded run. The simulation is steady long before."""


def rules_of(config: Mapping[str, Any]) -> FlowRules:
    """The gate and the cut that a run's settings describe."""
    section = config.get("rollout", {})
    if "batch" not in section:
        raise ConfigError("the settings of this run have no [rollout]: it plays no episodes")
    return FlowRules(RolloutSection.model_validate(section))


# --- the engines ---------------------------------------------------------------------------------


def _num_engines(run: RecordedRun) -> int:
    """Servers that a run's settings name: their addresses, or the number of them to start."""
    name = str(run.config.get("engine", {}).get("name", "local"))
    return len(name.split(",")) if "://" in name else int(run.engine_options.get("servers", 1))


# --- the trainer -----------------------------------------------------------------------------------


def fit_trainer(runs: Sequence[RecordedRun], notes: list[str]) -> TrainerSpeed:
    """Seconds a token and a step. On a CPU, CPU seconds: what others take of it is simulated."""
    ranks = np.concatenate(
        [np.full(len(run.steps) - 1, int(_of(run.config, "trainer", "ranks", 1))) for run in runs]
    ).astype(np.float64)
    tokens = np.concatenate([_step_tokens(run) for run in runs])
    wall = np.concatenate([run.column("train/step_s")[1:] for run in runs])
    is_cpu = all(run.cpu_used("trainer-0") is not None and _computes_on_cpu(run) for run in runs)
    seconds = wall
    if is_cpu:  # its wait for a core is simulated
        seconds = np.concatenate([run.column("train/cpu_s")[1:] for run in runs]) / ranks
    each_token = tokens / ranks
    token_s, fixed = _slope(each_token, seconds, ranks, notes)
    left = seconds - fixed - token_s * each_token
    sync = max(0.0, float(left[ranks > 1].mean())) if ranks.max() > 1 else 0.0
    if ranks.max() == 1:
        notes.append("several ranks take no time for their collectives: no run had them")
    publish = np.concatenate([run.column("train/publish_s", default=0.0)[1:] for run in runs])
    alone_s = float(np.median(publish[ranks == ranks.min()]))
    return TrainerSpeed(
        token_s=token_s,
        fixed_s=fixed,
        sync_s=sync,
        ranks=int(_of(runs[0].config, "trainer", "ranks", 1)),
        publish_s=alone_s,
        gather_s=max(0.0, float(np.median(publish[ranks > 1])) - alone_s)
        if ranks.max() > 1
        else 0.0,
        cores=1.0 if is_cpu else 0.0,
    )


VARIES = 0.1
"""Relative scatter of the tokens of a step, from which on a slope is fitted."""


def _slope(
    each_token: Floats, seconds: Floats, ranks: Floats, notes: list[str]
) -> tuple[float, float]:
    """Seconds a token and seconds a step of one rank, from the runs with the fewest ranks."""
    alone = ranks == ranks.min()
    tokens, took = each_token[alone], seconds[alone]
    if float(tokens.std() / tokens.mean()) > VARIES:
        columns = np.stack([np.ones_like(tokens), tokens], axis=1)
        fixed, token_s = fit_above_zero(columns, took)
        return token_s, fixed
    notes.append(
        "the batches had nearly equal numbers of tokens: half of a step is taken to grow with them, "
        "half to be fixed"
    )
    token_s = 0.5 * float((took / tokens).mean())
    return token_s, float((took - token_s * tokens).mean())


def _step_tokens(run: RecordedRun) -> Floats:
    name = "train/num_computed" if "train/num_computed" in run.steps[0] else "train/num_tokens"
    return run.column(name)[1:]


def _computes_on_cpu(run: RecordedRun) -> bool:
    """Whether the trainer's time is time of a processor, and not of a device that it waits for."""
    if "train/cpu_s" not in run.steps[0]:
        return False
    device = _of(run.config, "trainer", "device", "auto")
    shares = run.column("train/cpu_s") / np.maximum(1e-9, run.column("train/wall_s"))
    return device != "cuda" and float(np.median(shares)) > 0.2


# --- the machine -----------------------------------------------------------------------------------


def _machine(
    runs: Sequence[RecordedRun],
    engine: EngineSpeed,
    trainer: TrainerSpeed,
    counts: Sequence[int],
) -> Machine | None:
    """The cores that all parts share; None where trainer and engine have devices of their own."""
    if not trainer.cores:
        return None
    cores = float(runs[0].steps[-1].get("train/cores", 0.0))
    if not cores:
        raise ConfigError(
            f"{runs[0].path} does not say how many cores its machine has: it is of an older version; "
            "calibrate from a new run"
        )
    num_calls = sum(len(run.counted_calls()) for run in runs)
    main = sum(run.cpu_used("main") or 0.0 for run in runs)
    request_cpu_s = main / max(1, num_calls)
    others = [_others(run, engine, count, cores) for run, count in zip(runs, counts, strict=True)]
    return Machine(cores, request_cpu_s, others=float(np.median(others)))


def _others(run: RecordedRun, engine: EngineSpeed, count: int, cores: float) -> float:
    """Cores' worth of threads of others that competed with the run, by how slowly its ranks computed."""
    ranks = int(_of(run.config, "trainer", "ranks", 1))
    cpu, wall = run.column("train/cpu_s")[1:] / ranks, run.column("train/step_s")[1:]
    pace = float(np.clip(cpu.sum() / wall.sum(), 0.05, 1.0))
    if pace > 0.95:
        return 0.0
    own = ranks + sum(
        min(1.0, (run.cpu_used(name) or 0.0) / run.lasted_s) for name in ("engine", "main")
    )
    return max(0.0, cores / pace - own)


def _of(config: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    return config.get(section, {}).get(key, default)


def on_other_machines(setup: Setup) -> Setup:
    """The same parts, each on a machine of its own: nobody takes cores from anybody."""
    return replace(
        setup,
        machine=None,
        engine=replace(setup.engine, cores=0.0),
        trainer=replace(setup.trainer, cores=0.0),
    )
