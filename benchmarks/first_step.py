"""The same small tool agent in areal-sdk and in trl: code, packages, and seconds to the first optimiser step.

    python -m venv trl-env && trl-env/bin/pip install trl==1.16.0 jmespath uv   # beside torch and transformers
    python benchmarks/first_step.py --trl-python trl-env/bin/python --uv trl-env/bin/uv [--rounds 3]

Both sides: the random `tiny` model, 32 episodes in groups of 8, a calculator tool, at most 32 new tokens a
turn, one optimiser step, one thread a process. A random model is never right, so the reward is the share of
an answer's letters that are digits of the right one. trl knows a handful of chat templates, so `tiny` has
Qwen3's on its side. The sides take turns; the clock runs from the start of the command to the line that
reports the step.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from lines import count_lines
from tables import table, write_section

HERE = Path(__file__).parent / "first_step"
TIMEOUT_S = 600
PREPARE = """
import pathlib, shutil, sys, trl
from areal_sdk.models import make_tiny_model
model = make_tiny_model(pathlib.Path(sys.argv[1]))
templates = pathlib.Path(trl.__file__).parent / "chat_templates"
shutil.copy(templates / "qwen3.jinja", model / "chat_template.jinja")
"""


@dataclass(frozen=True)
class Absent:
    """A library that cannot train here."""

    name: str
    requirement: str
    """The requirement to install, with everything that training needs."""
    why: str
    python: str = "3.11"


ABSENT = (
    Absent(
        "verifiers 0.4.0",
        "verifiers==0.4.0",
        "no trainer is in it; that of its makers is not on PyPI and samples with vLLM on a GPU",
    ),
    Absent("Agent Lightning 0.3.0", "agentlightning[verl]==0.3.0", "it trains with VERL on a GPU"),
    Absent(
        "ART 0.5.18",
        "openpipe-art[backend]==0.5.18",
        "it trains with vLLM on a GPU, or on a service",
    ),
    Absent(
        "SkyRL 0.3.1",
        "skyrl-train==0.3.1",
        "it trains with vLLM (not counted: a part of it is not on PyPI) and Ray on GPUs",
        python="3.12",
    ),
    Absent("AReaL 1.0.4", "areal==1.0.4", "it trains with SGLang or vLLM on GPUs"),
)


AREAL_SDK_NAMES = (
    *("Agent", "Task", "run", "tasks", "data", "base_url", "api_key", "http_client", "model"),
    *("--model", "--steps", "rollout.max_new_tokens", "rollout.max_turns"),
    *("eval.before", "eval.after"),
)
TRL_NAMES = (
    *(
        "GRPOConfig",
        "GRPOTrainer",
        "train",
        "model",
        "reward_funcs",
        "tools",
        "train_dataset",
        "args",
    ),
    *("prompt", "completions", "Args:", "per_device_train_batch_size"),
    *("num_generations", "max_completion_length", "max_tool_calling_iterations", "max_steps"),
    *("logging_steps", "save_strategy", "use_cpu", "report_to"),
)


@dataclass
class Side:
    name: str
    file: Path
    requirement: str
    names: Sequence[str]
    """The names of the library that the program, and the command that starts it, spell: names that are imported, overridden or
    found by the library, fields of the objects that it hands over, parameters and settings. Names of Python and of
    OpenAI's client do not count, nor does the place of the output."""
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def until_step(command: Sequence[str], mark: str, env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds from the start of the command to its line with `mark`, and its CPU-seconds to its end."""
    before, began = os.times(), time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **env}
    )
    assert process.stdout is not None
    seen, said = None, b""
    while chunk := os.read(process.stdout.fileno(), 65536):
        said += chunk
        if seen is None and mark.encode() in said:
            seen = time.monotonic() - began
    code = process.wait(timeout=TIMEOUT_S)
    process.stdout.close()
    if code or seen is None:
        raise SystemExit(f"{command} ended with {code}:\n{said.decode(errors='replace')[-3000:]}")
    after = os.times()
    used = after.children_user + after.children_system
    return seen, used - before.children_user - before.children_system


def num_packages(uv: str, requirement: str, python: str = "3.11") -> int:
    """Distributions that an empty environment gets from PyPI, on Linux."""
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-cache"]
    done = subprocess.run(
        [*command, "--python-version", python, "-"],
        input=requirement,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=HERE.parents[1],
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return len(done.stdout.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trl-python", help="Of an environment with trl; without it only ours runs."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uv", default="uv", help="Counts packages.")
    given = parser.parse_args()
    root = HERE.parents[1].as_uri()
    ours = Side(
        "areal-sdk",
        HERE / "areal_sdk_agent.py",
        f"areal-sdk[train] @ {root}",
        AREAL_SDK_NAMES,
    )
    others = (
        [Side("trl 1.16.0", HERE / "trl_agent.py", "trl==1.16.0", TRL_NAMES)]
        if given.trl_python
        else []
    )
    with TemporaryDirectory() as directory:
        place = Path(directory)
        if others:
            prepare = [given.trl_python, "-c", PREPARE, str(place / "tiny")]
            subprocess.run(prepare, check=True, timeout=TIMEOUT_S)
        for number in range(given.rounds):
            run_ours(ours, place / f"ours-{number}")
            for side in others:
                command = [
                    given.trl_python,
                    str(side.file),
                    str(place / "tiny"),
                    str(place / "out"),
                ]
                record(side, command, "'loss'")
    sides = [ours, *others]
    spelt = ours.file.read_text() + Path(__file__).read_text().partition("def run_ours")[2]
    for side in sides:
        text = spelt if side is ours else side.file.read_text()
        assert all(name in text for name in side.names), (
            f"{side.name}: a name is not in the program"
        )
    rows: list[list[object]] = [
        [
            side.name,
            count_lines(side.file),
            len(side.names),
            num_packages(given.uv, side.requirement),
            f"{statistics.median(side.seconds):.0f}",
            f"{statistics.median(side.cpu_s):.1f}",
            "",
        ]
        for side in sides
    ]
    for absent in ABSENT:
        packages = num_packages(given.uv, absent.requirement, absent.python)
        rows.append([absent.name, "", "", packages, "", "", f"not run here: {absent.why}"])
    header = ["", "lines", "concepts", "packages", "s to the first step", "CPU-s", ""]
    text = (
        "## The same tool agent in other libraries\n\n"
        f"`python benchmarks/first_step.py --trl-python PYTHON --rounds {given.rounds}`: a calculator tool, the "
        "random `tiny` model, 32 episodes, one optimiser step; medians, on two cores that other work shared. "
        "Lines are those of the program, without comments and empty lines. Concepts are the names of the "
        "library that the program and its command spell: imported, overridden or found by name, fields of objects "
        "that the library hands over, parameters and settings (`Side.names`). Packages are what an empty "
        f"environment gets on Linux, torch for CUDA included.\n\n{table(header, rows)}"
    )
    write_section("first_step", text)


def run_ours(side: Side, run: Path) -> None:
    settings = {
        "run.dir": run.parent,
        "run.name": run.name,
        "eval.before": "false",
        "eval.after": "false",
        "rollout.max_new_tokens": 32,
        "rollout.max_turns": 3,
    }
    command = [sys.executable, "-m", "areal_sdk", "train", str(side.file), "--model", "tiny"]
    command += ["--steps", "1"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    record(side, command, "step 1/1  reward")


def record(side: Side, command: Sequence[str], mark: str) -> None:
    seconds, cpu_s = until_step(command, mark, {"OMP_NUM_THREADS": "1"})
    side.seconds.append(seconds)
    side.cpu_s.append(cpu_s)
    print(f"{side.name}: {seconds:.1f} s, {cpu_s:.1f} CPU-s", flush=True)


if __name__ == "__main__":
    main()
