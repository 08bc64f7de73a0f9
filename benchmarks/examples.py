"""The examples: lines of the user's code, samples an episode, and success before and after training.

    python benchmarks/examples.py [--runs DIR] [--only math_with_retries langgraph]

Makes the run directories that are not there yet, one after the other, and writes docs/examples.md's table and
its picture from all that are there. A framework whose packages are not installed is left out
(tests/examples/test_frameworks.py names them).

`tiny` learns to call a tool through a framework by imitation: a weak player plays through each of them, and
one run learns from all. The frameworks' figures are of the random model, and of that run.
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from lines import count_lines
from pictures import Line, Panel, draw, save
from tables import table, write_section

from areal_sdk import Run
from areal_sdk.config import parse_config
from areal_sdk.finetune import Teacher, ask_teacher
from areal_sdk.rollout.trajectory import branches

ROOT = Path(__file__).parents[1]
AGENTS = ROOT / "examples" / "agents"
FRAMEWORKS = AGENTS / "frameworks"
PAGE = ROOT / "docs" / "examples.md"
PICTURE = ROOT / "docs" / "images" / "examples.svg"
TIMEOUT_S = 3600
BENCHMARKS = "benchmarks.md"
CONVERGENCE = "convergence-of-the-algorithms-on-guess_number"
DEMO = "the-demo-a-calculator-tool-smollm2-135m-two-cores"
TAUGHT = "frameworks-taught"
STUDENT = (
    *("--model", "tiny", "--min-reward", "0", "--batch", "32", "--steps", "200"),
    *("--learning-rate", "2e-3", "--set", "trainer.schedule=linear"),
    *("--set", "trainer.precision=float32", "--set", "engine.dtype=float32"),
    *("--set", "finetune.max_tokens=2048"),
)
STARTS_S = 60
PORT = 8123


@dataclass(frozen=True)
class Example:
    name: str
    what: str
    files: Sequence[Path]
    """The user's code; the first is the agent."""
    package: str = ""
    """The module of its framework. The model learns from a teacher how to call the tool."""
    is_trained: bool = True
    """Whether the example is trained here; else only the untrained model is measured."""
    where: str = ""
    """Place of the example's figures, if they are not measured here."""
    model: str = "smollm2"
    """The model that is measured untrained."""
    arguments: Sequence[str] = ()

    @property
    def num_lines(self) -> int:
        return sum(count_lines(file) for file in self.files)


def _framework(name: str, what: str, package: str) -> Example:
    files = (FRAMEWORKS / f"{name}_agent.py", FRAMEWORKS / "number_game.py")
    games = str(FRAMEWORKS / "games.jsonl")
    settings = ["--config", str(FRAMEWORKS / "tiny.toml"), "--tasks", games]
    return Example(name, what, files, package=package, arguments=settings, model="tiny")


def _own(name: str, what: str, **others: Any) -> Example:
    config = ["--config", str(AGENTS / f"{name}.toml")]
    return Example(name, what, (AGENTS / f"{name}.py",), arguments=config, **others)


EXAMPLES = (
    _own(
        "guess_number",
        "a game, as an environment",
        where=f"{BENCHMARKS}#{CONVERGENCE}",
        model="tiny",
    ),
    _own("math_with_retries", "multi-turn math: another try after a wrong answer"),
    _own("calculator", "a calculator tool", where=f"{BENCHMARKS}#{DEMO}"),
    Example(
        "second_look",
        "self-correction: a workflow with a reward for each turn",
        (AGENTS / "second_look.py",),
        arguments=("--num-tasks", "20"),
        is_trained=False,
    ),
    _own("code_fixer", "a function mended until its tests pass, in a sandbox"),
    _own(
        "retrieval",
        "search in a full-text index (SQLite FTS5), then an answer",
        is_trained=False,
    ),
    _framework("openai_agents", "OpenAI Agents SDK, a tool", "agents"),
    _framework("langgraph", "LangChain and LangGraph, a tool", "langchain_openai"),
    _framework("pydantic_ai", "Pydantic AI, a tool", "pydantic_ai"),
    _framework("smolagents", "smolagents, a tool", "smolagents"),
    _framework("anthropic", "Anthropic's client, a tool", "anthropic"),
)


def play(example: Example, runs: Path) -> None:
    if example.is_trained and not example.package and not example.where:
        if not (runs / example.name).is_dir():
            agent = str(example.files[0])
            _areal_sdk("train", agent, *example.arguments, *_kept_in(runs / example.name))
        return
    models = {"untrained": example.model}
    if example.package:
        models["taught"] = str(runs / TAUGHT)
    for when, model in models.items():
        run = runs / f"{example.name}-{when}"
        if not run.is_dir():
            given = [*example.arguments, "--model", model, "--record", *_kept_in(run)]
            _areal_sdk("eval", str(example.files[0]), *given)


def teach(frameworks: Sequence[Example], runs: Path) -> None:
    """The teacher plays through each framework, and `tiny` imitates what it did in all of them."""
    if (runs / TAUGHT).is_dir():
        return
    played = []
    with served_teacher(runs) as (address, key):
        os.environ["OPENAI_API_KEY"] = key
        for example in frameworks:
            settings = {
                "agent": str(example.files[0]),
                "tasks": str(FRAMEWORKS / "games.jsonl"),
                "run": {"dir": str(runs), "name": example.name},
            }
            taught = ask_teacher(parse_config(settings), Teacher(address, "tiny", None, 25))
            played.append(str(taught.run_dir))
    _areal_sdk("sft", *played, *STUDENT, *_kept_in(runs / TAUGHT))


def _kept_in(run: Path) -> list[str]:
    return ["--set", f"run.dir={run.parent}", "--set", f"run.name={run.name}"]


@contextmanager
def served_teacher(runs: Path) -> Iterator[tuple[str, str]]:
    """The weak player behind a gateway of its own, which speaks every client's wire format."""
    key = secrets.token_urlsafe(24)
    log = runs / "teacher.log"
    command = [sys.executable, "-m", "areal_sdk", "serve", "--engine", "weak_player"]
    command += ["--plugin", str(FRAMEWORKS / "weak_player.py"), "--model", "tiny"]
    command += ["--port", str(PORT), "--admin-key", key]
    with log.open("w") as out:
        serving = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        _until_serving(serving, log)
        yield f"http://127.0.0.1:{PORT}/v1", key
    finally:
        serving.terminate()
        serving.wait(timeout=STARTS_S)


def _until_serving(serving: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + STARTS_S
    while "serving tiny" not in log.read_text():
        if serving.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the teacher did not start:\n{log.read_text()}")
        time.sleep(0.2)


def _areal_sdk(*arguments: str) -> None:
    command = [sys.executable, "-m", "areal_sdk", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, timeout=TIMEOUT_S, cwd=ROOT, env=env)


@dataclass(frozen=True)
class Figures:
    """The figures of an example, read from run directories."""

    before: dict[str, Any]
    after: dict[str, Any] | None
    steps: Sequence[dict[str, Any]]
    samples_an_episode: float

    @classmethod
    def of(cls, example: Example, runs: Path) -> "Figures | None":
        if example.is_trained and not example.package:
            found = _evaluations(runs / example.name)
            if "after" not in found:
                return None
            run = Run(runs / example.name)
            return cls(found["before"], found["after"], run.metrics(), samples_an_episode(run))
        before = _evaluations(runs / f"{example.name}-untrained").get("eval")
        after = _evaluations(runs / f"{example.name}-taught").get("eval")
        if before is None or (example.is_trained and after is None):
            return None
        last = runs / f"{example.name}-{'untrained' if after is None else 'taught'}"
        return cls(before, after, (), samples_an_episode(Run(last)))


def _evaluations(run: Path) -> dict[str, dict[str, Any]]:
    """Evaluations by name; empty if there is no such run."""
    rows = Run(run).evaluations() if run.is_dir() else []
    return {row["name"]: row for row in rows if row["split"] == "eval"}


def samples_an_episode(run: Run) -> float:
    """The number of sequences that the turns of an episode are, on average: 1 if each turn
    continues the last."""
    episodes = [run.episode(row["id"]) for row in run.episodes()[-MOST_READ:]]
    found = [len(list(branches(episode.turns))) for episode in episodes if episode.turns]
    return sum(found) / len(found)


def success(row: dict[str, Any]) -> str:
    return f"{row['success']:.2f} [{row['success_low']:.2f}, {row['success_high']:.2f}]"


def write_page(runs: Path) -> None:
    rows: list[list[object]] = []
    trained, taught = [], []
    for example in EXAMPLES:
        code = f"[{example.name}](../{example.files[0].relative_to(ROOT)})"
        row: list[object] = [code, example.what, example.num_lines]
        found = None if example.where else Figures.of(example, runs)
        if found is None:
            why = f"[measured there]({example.where})" if example.where else "not run here"
            one = runs / f"{example.name}-untrained"
            samples = f"{samples_an_episode(Run(one)):.2f}" if one.is_dir() else ""
            rows.append([*row, samples, why, "", ""])
            continue
        after = "not trained here" if found.after is None else success(found.after)
        how = f"{len(found.steps)} steps" if found.steps else ""
        if found.steps:
            how += f", {found.steps[-1]['train_seconds'] / 60:.0f} minutes"
            heights = [step["batch/success"] for step in found.steps]
            trained.append(Line(example.name, smoothed(heights)))
        elif found.after is not None:
            how = "imitation"
            ends = (found.before, found.after)
            taught.append(Line(example.name, [end["success"] for end in ends]))
        rows.append([*row, f"{found.samples_an_episode:.2f}", success(found.before), after, how])
    header = ["example", "what it is", "lines", "samples an episode"]
    header += ["success before", "after", "by"]
    write_section("examples", table(header, rows), document=PAGE)
    panels = [
        Panel("training episodes, by step", ["first", *[""] * (NUM_PLACES - 2), "last"], trained),
        Panel("frameworks, by imitation", ["random", "taught"], taught),
    ]
    save(draw("success of the examples", panels), PICTURE)


MOST_READ = 200
"""Episodes of a run."""
NUM_PLACES = 12


def smoothed(heights: Sequence[float]) -> list[float]:
    """The means of so many equal parts of a curve, so that runs of different length share a picture."""
    parts = min(NUM_PLACES, len(heights))
    bounds = [len(heights) * part // parts for part in range(parts + 1)]
    means = [sum(heights[a:b]) / (b - a) for a, b in pairwise(bounds)]
    return means + means[-1:] * (NUM_PLACES - parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "examples")
    parser.add_argument("--only", nargs="*", default=[example.name for example in EXAMPLES])
    given = parser.parse_args()
    runs: Path = given.runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    chosen = [
        e for e in EXAMPLES if e.name in given.only and (not e.package or find_spec(e.package))
    ]
    if frameworks := [example for example in chosen if example.package]:
        teach(frameworks, runs)
    for example in chosen:
        play(example, runs)
    write_page(runs)


if __name__ == "__main__":
    main()
