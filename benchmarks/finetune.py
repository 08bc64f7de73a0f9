"""Success on held-out tasks before and after SFT, DPO, a reward model and distillation.

    python benchmarks/finetune.py [--seeds 1 2 3] [--keep DIR] [--write]

The agent wants three letters in order (`cab` -> `abc`); 96 words are trained and 24 held out. All runs are of the tiny
model, which begins with random weights.

1. SFT on 192 conversations: each word is answered once in small letters and once in capitals (`ABC`). So the model learns
   both, and gives the wanted answer every second time at most: more of these rows would not change that.
2. DPO goes on from the SFT weights with 96 pairs: small letters chosen, capitals rejected.
3. A reward model is trained on the same pairs, from the SFT weights, and measured on the pairs of the held-out words.
4. The DPO model is served as a teacher. A student with random weights imitates its good episodes.

With `--keep` a seed that has ended there is not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.sorted_letters import words
from seeds import with_interval
from tables import table, write_section

AGENT = Path(__file__).parent / "agents" / "sorted_letters.py"
KEY = "sk-a-teacher-for-a-benchmark-0123"
PLAY = ["--agent", str(AGENT), "--set", "eval.samples=8"]


def command(directory: Path, *arguments: str) -> dict[str, Any]:
    """The summary of one command of the SDK."""
    done = subprocess.run(
        [sys.executable, "-m", "areal_sdk", *arguments, "--json"],
        cwd=directory,
        env={**os.environ, "OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"areal-sdk {' '.join(arguments)}\n{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@contextmanager
def served(directory: Path, run: str) -> Iterator[str]:
    """The address of a server of the run's weights."""
    server = subprocess.Popen(
        [sys.executable, "-m", "areal_sdk", "serve", "--model", f"runs/{run}", "--port", "0"],
        cwd=directory,
        env={**os.environ, "AREAL_SDK_ADMIN_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield next(line.split(" at ")[1].strip() for line in server.stdout if " at http" in line)
    finally:
        server.terminate()
        server.communicate(timeout=60)


def right(word: str) -> str:
    return "".join(sorted(word))


def wrong(word: str) -> str:
    return right(word).upper()


def write_rows(path: Path) -> str:
    rows = [
        {"prompt": word, "completion": answer}
        for word in words("train")
        for answer in (right(word), wrong(word))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def write_pairs(path: Path, split: str) -> str:
    rows = [
        {
            "messages": [{"role": "user", "content": word}],
            "chosen": right(word),
            "rejected": wrong(word),
        }
        for word in words(split)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def success(summary: dict[str, Any]) -> tuple[float, float]:
    before, after = (summary[when]["eval"]["success"] for when in ("before", "after"))
    return float(before), float(after)


def measure(directory: Path, seed: int) -> dict[str, tuple[float, float]]:
    """The figures before and after each of the four."""
    begin = ["--model", "tiny", "--seed", str(seed), "--set", "engine.dtype=float32"]

    def new(name: str, steps: int, rate: str) -> list[str]:
        return [*begin, "--steps", str(steps), "--learning-rate", rate, "--set", f"run.name={name}"]

    rows = write_rows(directory / "rows.jsonl")
    sft = command(directory, "sft", rows, *new("sft", 120, "3e-3"), *PLAY)
    from_sft = ["--init-from", "runs/sft"]
    pairs = write_pairs(directory / "pairs.jsonl", "train")
    dpo = command(directory, "dpo", pairs, *new("dpo", 40, "1e-4"), *from_sft, *PLAY)
    unseen = ["--eval-data", write_pairs(directory / "held_out.jsonl", "eval")]
    judge = command(directory, "reward-model", pairs, *new("judge", 20, "1e-3"), *from_sft, *unseen)
    with served(directory, "dpo") as url:
        teacher = ["--teacher", url, "--teacher-model", "policy", "--samples", "2"]
        student = [*new("student", 80, "3e-3"), "--set", "eval.samples=8"]
        distilled = command(directory, "distill", str(AGENT), *teacher, *student)
    held_out = judge["held_out"]
    return {
        "SFT": success(sft),
        "DPO, from SFT": success(dpo),
        "reward model (pairs)": (held_out["before/accuracy"], held_out["after/accuracy"]),
        "distillation of DPO": success(distilled),
    }


def section(found: Sequence[dict[str, tuple[float, float]]], seeds: Sequence[int]) -> str:
    rows = []
    for name in found[0]:
        before, after = ([of[name][i] for of in found] for i in (0, 1))
        each = ", ".join(f"{b:.2f} -> {a:.2f}" for b, a in zip(before, after, strict=True))
        rows.append((name, with_interval(before), with_interval(after), each))
    listed = " ".join(map(str, seeds))
    header = ("", "before", "after", f"seeds {listed}")
    return f"""## Fine-tuning, before and after

`python benchmarks/finetune.py --seeds {listed} --write`: the tiny model puts three letters in order (`cab` -> `abc`). Success on
24 held-out words, 8 attempts each at temperature 1; for the reward model, the share of pairs of held-out words whose answer in
small letters gets the higher reward. Means over {len(seeds)} seeds, and half the width of the 95 % interval. The SFT data answer each word
once in small letters and once in capitals, so SFT cannot teach which is wanted; the pairs say it. Steps and learning rates were
chosen with seed 8, which is not in the table. The docstring of the program has the rest.

{table(header, rows)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--keep", type=Path, help="Keep the runs in this directory.")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="areal-sdk-finetune-") as scratch:
        for seed in options.seeds:
            directory = (options.keep or Path(scratch)) / f"seed-{seed}"
            directory.mkdir(parents=True, exist_ok=True)
            ended = directory / "found.json"
            if not ended.exists():
                ended.write_text(json.dumps(measure(directory, seed)))
            found.append(json.loads(ended.read_text()))
            print(f"seed {seed}: {found[-1]}", file=sys.stderr, flush=True)
    text = section(found, options.seeds)
    print(text)
    if options.write:
        write_section("finetune", text)


if __name__ == "__main__":
    main()
