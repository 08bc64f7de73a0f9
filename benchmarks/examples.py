"""The examples: lines of the user's code, samples an episode, and success before and after training.

    python benchmarks/examples.py [--runs DIR] [--only math_with_retries langgraph]

Makes the run directories that are not there yet, one after the other, and writes docs/examples.md's table and
its picture from all that are there. A framework whose packages are not installed is left out
(tests/examples/test_frameworks.py names them).

Before `tiny` can learn a game it has to call a tool: it imitates a weak player that played through the
frameworks. All frameworks share that run.
"""

import argparse
import ast
import os
import secrets
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from pictures import Line, Panel, draw, save
from tables import table, write_section

from areal_sdk import Run
from areal_sdk.config import parse_config
from areal_sdk.finetune import Teacher, ask_teacher

ROOT = Path(__file__).parents[1]
AGENTS = ROOT / "examples" / "agents"
FRAMEWORKS = AGENTS / "frameworks"
PAGE = ROOT / "docs" / "examples.md"
PICTURE = ROOT / "docs" / "images" / "examples.svg"
TIMEOUT_S = 3600
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
    """The module of its framework. The model learns from a teacher first, how to call the tool."""
    arguments: Sequence[str] = ()

    @property
    def num_lines(self) -> int:
        return sum(count_lines(file) for file in self.files)


def _framework(name: str, what: str, package: str) -> Example:
    files = (FRAMEWORKS / f"{name}_agent.py", FRAMEWORKS / "number_game.py")
    games = str(FRAMEWORKS / "games.jsonl")
    settings = ["--config", str(FRAMEWORKS / "tiny.toml"), "--tasks", games, "--eval-tasks", games]
    return Example(name, what, files, package=package, arguments=settings)


def _own(name: str, what: str) -> Example:
    config = ["--config", str(AGENTS / f"{name}.toml")]
    return Example(name, what, (AGENTS / f"{name}.py",), arguments=config)


EXAMPLES = (
    _own("guess_number", "a game, as an environment"),
    _own("math_with_retries", "multi-turn math: another try after a wrong answer"),
    _own("calculator", "a calculator tool"),
    _own("retrieval", "search in a full-text index (SQLite FTS5), then an answer"),
    _framework("openai_agents", "OpenAI Agents SDK, a tool", "agents"),
    _framework("langgraph", "LangChain and LangGraph, a tool", "langchain_openai"),
    _framework("pydantic_ai", "Pydantic AI, a tool", "pydantic_ai"),
    _framework("smolagents", "smolagents, a tool", "smolagents"),
    _framework("anthropic", "Anthropic's client, a tool", "anthropic"),
)


def count_lines(file: Path) -> int:
    """Lines that are neither empty nor only a comment or part of a docstring."""
    with file.open("rb") as content:
        kinds = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        kinds |= {tokenize.ENCODING, tokenize.ENDMARKER}
        used = {
            number
            for token in tokenize.tokenize(content.readline)
            if token.type not in kinds
            for number in range(token.start[0], token.end[0] + 1)
        }
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            used -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(used)


def play(example: Example, runs: Path) -> None:
    if (runs / example.name).is_dir():
        return
    agent, start = str(example.files[0]), []
    if example.package:
        start = ["--init-from", str(runs / TAUGHT)]
    _areal_sdk("train", agent, *example.arguments, *start, *_kept_in(runs / example.name))


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
    """What a run directory says of an example."""

    before: dict[str, Any]
    after: dict[str, Any]
    steps: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, run: Path) -> "Figures | None":
        if not run.is_dir():
            return None
        read = Run(run)
        rows = {row["name"]: row for row in read.evaluations() if row["split"] == "eval"}
        if not {"before", "after"} <= rows.keys():
            return None
        return cls(rows["before"], rows["after"], read.metrics())

    @property
    def samples_an_episode(self) -> float:
        samples = sum(step["train/num_trajectories"] for step in self.steps)
        return float(samples / sum(step["batch/episodes"] for step in self.steps))


def success(row: dict[str, Any]) -> str:
    return f"{row['success']:.2f} [{row['success_low']:.2f}, {row['success_high']:.2f}]"


def write_page(runs: Path) -> None:
    rows, lines = [], []
    for example in EXAMPLES:
        found = Figures.of(runs / example.name)
        code = f"[{example.name}](../{example.files[0].relative_to(ROOT)})"
        if found is None:
            rows.append([code, example.what, example.num_lines, "-", "not run here", "-", "-", "-"])
            continue
        rows.append(
            [
                code,
                example.what,
                example.num_lines,
                f"{found.samples_an_episode:.2f}",
                success(found.before),
                success(found.after),
                len(found.steps),
                f"{found.steps[-1]['train_seconds'] / 60:.1f}",
            ]
        )
        heights = [step["batch/success"] for step in found.steps]
        lines.append(Line(example.name, smoothed(heights)))
    header = ["example", "what it is", "lines", "samples an episode"]
    header += ["success before", "after", "steps", "minutes"]
    write_section("examples", table(header, rows), document=PAGE)
    half = len(lines) // 2 + len(lines) % 2
    panels = [
        Panel(title, ["start", *[""] * (NUM_PLACES - 2), "end"], part)
        for title, part in (("", lines[:half]), ("", lines[half:]))
    ]
    save(draw("success of training episodes, from the first step to the last", panels), PICTURE)


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
