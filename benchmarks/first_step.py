"""The same small tool agent in areal-sdk and in trl: code, packages, and seconds to the first optimiser step.

    python -m venv trl-env && trl-env/bin/pip install trl==1.16.0 jmespath      # beside torch and transformers
    python benchmarks/first_step.py --trl-python trl-env/bin/python [--rounds 3]

Both sides: the random `tiny` model, 32 episodes in groups of 8, a calculator tool, at most 32 new tokens a
turn, one optimiser step, one thread a process. A random model is never right, so the reward is the share of
an answer's letters that are digits of the right one. trl knows a handful of chat templates, so `tiny` has
Qwen3's on its side. The sides take turns; the clock runs from the start of the command to the line that
reports the step.
"""

import argparse
import json
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
NOT_RUN = {
    "verifiers 0.4.0": "training samples with vLLM on a GPU",
    "Agent Lightning 0.3.0": "it trains with VERL on a GPU",
    "ART (openpipe-art)": "it trains with vLLM on a GPU, or on a service",
    "SkyRL": "it trains with vLLM and Ray on GPUs",
}


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


def num_packages(python: str, requirement: str) -> int:
    """Distributions that an empty environment gets."""
    wanted = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    constraints = ["--constraint", str(HERE.parents[1] / "constraints.txt")]
    done = subprocess.run(
        [python, "-m", "pip", *wanted, *constraints, requirement],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=HERE.parents[1],
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return len(json.loads(done.stdout)["install"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trl-python", help="Of an environment with trl; without it only ours runs."
    )
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ours = Side("areal-sdk", HERE / "areal_sdk_agent.py", ".[train]", AREAL_SDK_NAMES)
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
            num_packages(given.trl_python or sys.executable, side.requirement),
            f"{statistics.median(side.seconds):.0f}",
            f"{statistics.median(side.cpu_s):.1f}",
            "",
        ]
        for side in sides
    ]
    rows += [[name, "", "", "", "", "", f"not run here: {why}"] for name, why in NOT_RUN.items()]
    header = ["", "lines", "concepts", "packages", "s to the first step", "CPU-s", ""]
    text = (
        "## The same tool agent in other libraries\n\n"
        f"`python benchmarks/first_step.py --trl-python PYTHON --rounds {given.rounds}`: a calculator tool, the "
        "random `tiny` model, 32 episodes, one optimiser step; medians, on two cores that other work shared. "
        "Lines are those of the program, without comments and empty lines. Concepts are the names of the "
        "library that the program and its command spell: imported, overridden or found by name, fields of objects "
        "that the library hands over, parameters and settings (`Side.names`). Packages are what an empty "
        f"environment gets, torch included.\n\n{table(header, rows)}"
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
