#!/usr/bin/env bash
# The path of a stranger, timed: an environment over a game that areal-sdk does not know (py-sudoku of PyPI), its tasks
# from Parquet, training, looking at the run, export, a wheel, and training from the wheels alone.
#
#   bash scripts/stranger_path.sh dist/areal_sdk-0.1.0-py3-none-any.whl
set -euo pipefail
core=$(realpath "$1")
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
python=$(realpath --no-symlinks "$(command -v "${PYTHON:-python3}")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

began=0 title=""
step() { # a title, or nothing at the end
  if [ -n "$title" ]; then printf '%4s s  %s\n' $((SECONDS - began)) "$title"; fi
  began=$SECONDS title=${1:-}
}
fails() { echo "FAILED: $1"; exit 1; }
summary() { env/bin/python -c "import json, sys; s = json.load(open('$1')); sys.exit(not ($2))" || fails "$1: $2"; }

step "install the core's wheel into an empty environment"
"$python" -m venv env
env/bin/python -m pip install --quiet --constraint "$constraints" "$core[train]"

step "init environment, and put the game into it"
env/bin/areal-sdk init environment areal-sdk-sudoku >/dev/null
sed -i 's/dependencies = \["areal-sdk"\]/dependencies = ["areal-sdk", "py-sudoku>=2"]/' areal-sdk-sudoku/pyproject.toml
cat >areal-sdk-sudoku/areal_sdk_sudoku/environment.py <<'PYTHON'
"""A sudoku of four by four with one blank: the model says the missing digit."""

from collections.abc import Sequence

from sudoku import Sudoku

from areal_sdk import Environment, Message, StepResult, Task


class ArealSdkSudoku(Environment):
    """The task's data: `question`, the rows with a dot for the blank."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self._rows = str(task.data["question"])
        return [{"role": "user", "content": self._rows}]

    async def step(self, message: Message) -> StepResult:
        said = str(message.get("content") or "").strip()
        is_right = said in ("1", "2", "3", "4") and self._is_solved_by(said)
        return StepResult(reward=float(is_right), done=True, success=is_right)

    def _is_solved_by(self, digit: str) -> bool:
        rows = self._rows.replace(".", digit).split("/")
        return bool(Sudoku(2, 2, board=[[int(one) for one in row] for row in rows]).validate())
PYTHON
cat >areal-sdk-sudoku/areal_sdk_sudoku/dataset.py <<'PYTHON'
"""Boards of py-sudoku with one blank."""

import random
from collections.abc import Iterator

from sudoku import Sudoku

from areal_sdk import Task


def tasks(split: str, *, count: int = 200, seed: int = 0) -> Iterator[Task]:
    """`count` boards, a quarter as many to measure on. The first row tells the splits apart."""
    is_train, generator = split == "train", random.Random(f"{seed} {split}")
    number = 0
    while number < (count if is_train else max(1, count // 4)):
        board = Sudoku(2, 2, seed=generator.randrange(2**31)).solve().board
        cells = list("/".join("".join(map(str, row)) for row in board))
        if (cells[0] == "4") == is_train:
            continue
        cells[generator.choice((1, 2, 3, 6, 8, 11, 13, 18))] = "."
        yield Task(f"{split}-{number}", {"question": "".join(cells)})
        number += 1
PYTHON
cat >areal-sdk-sudoku/tests/test_environment.py <<'PYTHON'
from areal_sdk_sudoku.environment import ArealSdkSudoku

from areal_sdk import Task
from areal_sdk.testing import check_plugin, run_agent

TASK = Task("t", {"question": "1.34/3412/2143/4321"})


async def test_the_missing_digit_wins_and_nothing_else() -> None:
    for said, reward in (("2", 1.0), ("3", 0.0), ("", 0.0), ("2, or 3", 0.0), ("2" * 999, 0.0)):
        assert (await run_agent(ArealSdkSudoku, TASK, engine=[said])).reward == reward


async def test_the_installed_plugin_keeps_every_contract() -> None:
    assert "environment 'areal_sdk_sudoku'" in await check_plugin("areal-sdk-sudoku")
PYTHON

step "install, its tests, plugins check"
env/bin/python -m pip install --quiet --constraint "$constraints" --editable "./areal-sdk-sudoku[test]"
env/bin/python -m pytest -q areal-sdk-sudoku
env/bin/areal-sdk plugins check areal-sdk-sudoku

step "tasks and demonstrations into files"
env/bin/python - <<'PYTHON'
import json
import random

from areal_sdk_sudoku.dataset import tasks
from pyarrow import Table, parquet

for split in ("train", "eval"):
    rows = [{"id": task.id, "board": task.data["question"]} for task in tasks(split)]
    parquet.write_table(Table.from_pylist(rows), f"{split}.parquet")
with open("demonstrations.jsonl", "w") as file:  # the form of an answer; which digit is for training to find
    for task in tasks("train", count=100, seed=1):
        said = [task.data["question"], random.Random(task.id).choice("1234")]
        messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), said, strict=True)]
        file.write(json.dumps({"messages": messages}) + "\n")
PYTHON

step "train on the tiny model"
env/bin/areal-sdk train --env areal_sdk_sudoku --tasks train.parquet --eval-tasks eval.parquet --question-field board \
  --model tiny --steps 20 --set run.dir=runs --set run.name=first --set rollout.batch=32 --set rollout.max_new_tokens=4 \
  --set sft.demonstrations=demonstrations.jsonl --set sft.steps=60 --set trainer.learning_rate=1e-3 \
  --set eval.tasks=50 --set eval.samples=4 --json >first.json
summary first.json "s['steps'] == 20 and s['ended'] == 'steps' and s['ledger']['trained'] >= 640"

step "look: inspect, one episode, the report"
env/bin/areal-sdk inspect runs/first >looked.txt
env/bin/areal-sdk inspect runs/first --worst 2 --where "split == train" >>looked.txt
grep -q reward looked.txt || fails "inspect shows no reward"
grep -q "<svg" runs/first/report.html || fails "report.html has no curve"

step "export the model"
env/bin/areal-sdk export runs/first --to model >/dev/null
test -s model/README.md && test -s model/config.json || fails "the export lacks a card or a config"

step "a wheel of the environment"
env/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist ./areal-sdk-sudoku

step "install both wheels into another empty environment"
rm -r areal-sdk-sudoku env # the wheels alone must do
"$python" -m venv env
env/bin/python -m pip install --quiet --constraint "$constraints" "$core[train]" dist/areal_sdk_sudoku-*.whl
env/bin/areal-sdk plugins check areal-sdk-sudoku

step "train from the wheels, on the exported model"
env/bin/areal-sdk train --env areal_sdk_sudoku --tasks areal_sdk_sudoku --eval-tasks areal_sdk_sudoku --model ./model \
  --steps 4 --set run.dir=runs --set run.name=second --set rollout.batch=16 --set rollout.max_new_tokens=4 \
  --set eval.tasks=20 --json >second.json
summary second.json "s['steps'] == 4 and s['ended'] == 'steps'"

step
printf '%4s s  in all\n' "$SECONDS"
env/bin/python -c "
import json
for name in ('first', 'second'):
    run = json.load(open(f'{name}.json'))
    print(f'{name} run: success', *(round(run[when]['eval']['success'], 2) for when in ('before', 'after')))
"
