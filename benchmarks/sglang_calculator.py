"""The demo on a real SGLang server: SmolLM2 learns the calculator to the local engine's bar.

    python benchmarks/sglang_calculator.py [--write]

The agent, the config and the held-out tasks of `make demo`; only the engine is another one, an
SGLang server on the CPU that this run starts and stops. Fails when held-out success stays below 0.9.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tables import table, write_section

from areal_sdk.errors import ConfigError
from areal_sdk_sglang.install import find_environment

ROOT = Path(__file__).parents[1]
BAR = 0.9
TIMEOUT_S = 3600


def train(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's summary, and its steps."""
    command = [sys.executable, "-m", "areal_sdk", "train", "examples/agents/calculator.py"]
    command += ["--config", "examples/agents/calculator.toml", "--engine", "sglang", "--json"]
    command += ["--set", f"run.dir={directory}", "--set", "run.name=calculator"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, cwd=ROOT, env=env
    )
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}")
    metrics = (directory / "calculator" / "metrics.jsonl").read_text().splitlines()
    steps = [event for line in metrics if (event := json.loads(line))["kind"] == "step"]
    return json.loads(done.stdout), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    try:
        environment = find_environment()
    except ConfigError as exc:
        print(f"not measured: {exc}")
        return
    with tempfile.TemporaryDirectory() as directory:
        summary, steps = train(Path(directory))

    def success(when: str, split: str) -> str:
        found = summary[when][split]
        return f"{found['success']:.2f} [{found['success_low']:.2f}, {found['success_high']:.2f}]"

    solved = next((s["train_seconds"] for s in steps if s["batch/success"] >= BAR), None)
    header = [
        "held-out before",
        "held-out after",
        "never-trained operation after",
        f"s of training until a batch's success is {BAR}",
        "s of training in all",
        "staleness max",
    ]
    row = [
        success("before", "eval"),
        success("after", "eval"),
        success("after", "transfer"),
        "-" if solved is None else f"{solved:.0f}",
        f"{summary['train_seconds']:.0f}",
        f"{max(step['batch/staleness_max'] for step in steps):.0f}",
    ]
    text = (
        f"## The demo on SGLang {environment.version}\n\n"
        f"`python benchmarks/sglang_calculator.py`: SmolLM2-135M, two cores, bfloat16, "
        f"{len(steps)} steps; agent, config and tasks are those of the demo. A real SGLang "
        "server on the CPU samples.\n\n" + table(header, [row])
    )
    print(text)
    if arguments.write:
        write_section("sglang-calculator", text)
    if summary["after"]["eval"]["success"] < BAR:
        raise SystemExit(f"held-out success stayed below {BAR}")


if __name__ == "__main__":
    main()
