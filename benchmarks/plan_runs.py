"""Runs that the planner is compared with: how they are played, and what is predicted of them."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from areal_sdk import Run
from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk_plan.calibration.recorded import WARM_STEPS, RecordedRun
from areal_sdk_plan.calibration.speeds_of_runs import calibrate
from areal_sdk_plan.simulation.run import expected_step_s
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import DecodeCurve, EngineSpeed, Machine, TrainerSpeed
from areal_sdk_plan.workload import LongTail, Workload

ROOT = Path(__file__).parents[1]
AGENT = Path(__file__).parent / "agents" / "paced.py"
DOCUMENT = ROOT / "docs" / "scaling.md"
RESULTS = ROOT / "docs" / "images" / "plan.json"
TRAIN_MINUTES, CALIBRATION_MINUTES = 0.4, 0.7
GROUP_SIZE = 4


@dataclass(frozen=True)
class Case:
    """One configuration."""

    name: str
    engines: int = 1
    eta: int = 1
    ranks: int = 1
    batch: int = 16
    inflight: int = 64
    calls: int = 2
    length: float = 24.0
    length_sigma: float = 0.5
    tool_s: float = 0.2
    tool_sigma: float = 0.5
    slots: int = 16

    def settings(self) -> Iterator[str]:
        yield from (
            "model=tiny",
            "engine.name=paced",
            f"engine.paced.servers={self.engines}",
            f"engine.paced.slots={self.slots}",
            f"agent.calls={self.calls}",
            f"agent.length={self.length}",
            f"agent.length_sigma={self.length_sigma}",
            f"agent.tool_s={self.tool_s}",
            f"agent.tool_sigma={self.tool_sigma}",
            f"trainer.ranks={self.ranks}",
            f"rollout.batch={self.batch}",
            f"rollout.group_size={GROUP_SIZE}",
            f"rollout.max_staleness={self.eta}",
            f"rollout.max_inflight={self.inflight}",
            "run.steps=1000",
            "run.checkpoint_every=0",
            "eval.before=false",
            "eval.after=false",
        )


CALIBRATION = (
    Case("calibration 1"),
    Case("calibration 2", engines=2, eta=2, ranks=2, tool_s=0.8),
    Case("calibration 3", batch=8, inflight=16, length=12.0),
)
CASES = (
    Case("1 engine, eta 0", eta=0),
    Case("2 engines, eta 0", engines=2, eta=0),
    Case("3 engines, eta 0", engines=3, eta=0),
    Case("1 engine, eta 2", eta=2),
    Case("1 engine, eta 4", eta=4),
    Case("2 engines, eta 1", engines=2, eta=1),
    Case("2 engines, eta 4", engines=2, eta=4),
    Case("3 engines, eta 2", engines=3, eta=2),
    Case("slow tools, eta 0", engines=2, eta=0, tool_s=1.0),
    Case("slow tools, eta 1", engines=2, eta=1, tool_s=1.0),
    Case("slow tools, eta 4", engines=2, eta=4, tool_s=1.0),
    Case("long tail, eta 0", engines=2, eta=0, length_sigma=1.0),
    Case("long tail, eta 2", engines=2, eta=2, length_sigma=1.0),
    Case("4 calls, eta 1", engines=3, eta=1, calls=4, length=16.0),
    Case("2 ranks, eta 0", engines=3, eta=0, ranks=2),
    Case("2 ranks, eta 2", engines=3, eta=2, ranks=2),
    Case("2 ranks, batch 32", engines=3, eta=1, ranks=2, batch=32, inflight=96),
    Case("few in flight", engines=3, eta=4, inflight=8),
)


# --- measuring -----------------------------------------------------------------------------------------


@dataclass
class Competition:
    """Threads of other programs that want to compute while a run goes on, sampled from /proc."""

    pid: int
    every_s: float = 0.25
    samples: list[float] = field(default_factory=list)

    def watch(self, ended: threading.Event) -> None:
        while not ended.wait(self.every_s):
            self.samples.append(self._look())

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples) if self.samples else 0.0

    def _look(self) -> float:
        """Runnable threads that are not of the run; a nice one counts as what the kernel gives it."""
        parents: dict[int, int] = {}
        runnable: dict[int, float] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            if fields[0] == "R":
                runnable[pid] = 1.25 ** -int(fields[16])
        own = {self.pid, os.getpid()}
        return sum(weight for pid, weight in runnable.items() if not _descends(pid, own, parents))


def _descends(pid: int, ancestors: set[int], parents: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid in ancestors:
            return True
        pid = parents.get(pid, 0)
    return False


def play(case: Case, directory: Path, *, minutes: float) -> dict[str, Any]:
    """Train for some minutes; what was measured."""
    load = os.getloadavg()
    command = [
        sys.executable,
        "-m",
        "areal_sdk",
        "train",
        f"{AGENT}::Paced",
        "--plugin",
        str(AGENT),
    ]
    command += ["--json", "--set", f"run.dir={directory}", "--set", f"run.name={case.name}"]
    for setting in (*case.settings(), f"run.max_minutes={minutes}"):
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    competition, ended = Competition(process.pid), threading.Event()
    watcher = threading.Thread(target=competition.watch, args=(ended,))
    watcher.start()
    output, _ = process.communicate(timeout=600)
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{output[-3000:]}")
    run = RecordedRun.read(Run(directory / case.name), least_steps=2)
    return {
        "case": asdict(case),
        "step_s": run.step_s,
        "noise": run.step_noise(),
        "steps": len(run.steps) - 1,
        "staleness": statistics.fmean(run.column("batch/staleness")[1:]),
        "trainer_s": statistics.fmean(run.column("train/step_s")[1:]),
        "load": load,
        "competing": competition.mean,
        "took_s": time.monotonic() - began,
    }


def measure(only: list[str]) -> None:
    """Play what is asked for, and keep it beside what was measured before."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    with tempfile.TemporaryDirectory(prefix="areal-sdk-plan-") as temporary:
        directory = Path(temporary)
        if not only:
            played = {c.name: play(c, directory, minutes=CALIBRATION_MINUTES) for c in CALIBRATION}
            found = calibrate([directory / case.name for case in CALIBRATION])
            setup = found.setup
            known["calibration"] = {
                "runs": played,
                "engine": asdict(setup.engine),
                "trainer": asdict(setup.trainer),
                "machine": asdict(setup.machine) if setup.machine else None,
                "competing": statistics.fmean(run["competing"] for run in played.values()),
                "notes": found.notes,
                **_lengths(found.setup.workload),
            }
            print(json.dumps(known["calibration"], indent=1), flush=True)
        for case in CASES:
            if only and case.name not in only:
                continue
            row = play(case, directory, minutes=TRAIN_MINUTES)
            known["cases"][case.name] = row
            RESULTS.write_text(json.dumps(known, indent=1) + "\n")
            predicted = predict(known["calibration"], row)
            error = predicted / row["step_s"] - 1.0
            print(
                f"{case.name:22} {row['step_s']:.3f} s measured, {predicted:.3f} s predicted, "
                f"{error:+.0%}, scatter {row['noise']:.0%}, {row['steps']} steps, load "
                f"{row['load'][0]:.1f}, competing {row['competing']:.1f}",
                flush=True,
            )


def _lengths(workload: Workload) -> dict[str, float]:
    """The figures that the tails of a case do not give: the prompts, and the agent's own time."""
    turns = [turn for shape in workload.episodes for turn in shape.turns]
    firsts = [shape.turns[0] for shape in workload.episodes if shape.turns]
    later = [t for s in workload.episodes for t in s.turns[1:]]
    return {
        "prompt": statistics.fmean(turn.num_prompt for turn in firsts),
        "answered": statistics.fmean(turn.num_new for turn in later) if later else 0.0,
        "trained_share": workload.trained_share,
        "after_s": statistics.median(shape.after_s for shape in workload.episodes),
        "turns": float(len(turns)),
    }


# --- predicting ----------------------------------------------------------------------------------------


def predict(calibration: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Seconds a step of a case, from the calibration and the case's settings, over as many steps."""
    case = Case(**row["case"])
    setup = setup_of(calibration, case, competing=row["competing"])
    return expected_step_s(setup, steps=WARM_STEPS + row["steps"], warm=WARM_STEPS)


# `agents/paced.py` caches a session's own prompt alone, and goes on after a swap with the keys it has.


def setup_of(calibration: Mapping[str, Any], case: Case, *, competing: float) -> Setup:
    engine, trainer = dict(calibration["engine"]), dict(calibration["trainer"])
    engine["decode"] = DecodeCurve(tuple((n, s) for n, s in engine["decode"]["points"]))
    machine = Machine(**{**calibration["machine"], "others": others(calibration, competing)})
    rollout = RolloutSection(
        batch=case.batch,
        group_size=GROUP_SIZE,
        max_staleness=case.eta,
        max_inflight=case.inflight,
    )
    return Setup(
        rules=FlowRules(rollout),
        workload=workload_of(calibration, case),
        engine=replace(EngineSpeed(**engine), max_slots=case.slots, recomputes=False),
        trainer=replace(TrainerSpeed(**trainer), ranks=case.ranks),
        num_engines=case.engines,
        machine=machine,
    )


def others(calibration: Mapping[str, Any], competing: float) -> float:
    """The number of threads that compete, from how slowly the calibration's ranks computed beside
    as many."""
    then = calibration["competing"]
    return float(calibration["machine"]["others"] * competing / then if then else competing)


def workload_of(calibration: Mapping[str, Any], case: Case) -> Workload:
    """Drawn from the tails that the settings name."""
    return Workload.described(
        output=LongTail(case.length, case.length_sigma, least=2.0, most=400.0),
        prompt=round(calibration["prompt"]),
        turns=case.calls,
        tool=LongTail(case.tool_s, case.tool_sigma),
        num_answered=max(0, round(calibration["answered"]) - 1),
        reward_s=calibration["after_s"],
        group_size=GROUP_SIZE,
        num_groups=512,
        trained_share=calibration["trained_share"],
        shares_prompt=False,
    )
