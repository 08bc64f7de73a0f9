"""The gauntlet: small tasks that nobody tuned for. Does a run learn, and does what was learnt stay?

    python benchmarks/gauntlet.py one-process [--tasks sort_digits grid] [--presets grpo rloo]
        [--rates 2e-5 1e-3 5e-3] [--seeds 1 2 3] [--steps 120] [--eta 1] [--set trust_region=0.003]
        [--option entropy=0.01] [--save FILE] [--table] [--publish LABEL]

    python benchmarks/gauntlet.py command --keep DIR [--shared] [--table] [--write] [--tasks sort_digits json_format] [--seeds 0 1]
        [--set trainer.learning_rate=1e-3] [--python ../before/.venv/bin/python]

    python benchmarks/gauntlet.py trl --keep DIR --trl PYTHON [--write] [--tasks reverse json_format] [--seeds 0 1]

The tasks are the agent files in benchmarks/gauntlet/, and examples/agents/guess_number.py. Each has
demonstrations of a weak player, which teach the format before reinforcement learning begins.

one-process  A small model (2 layers, 20,000 parameters, random) plays and learns in one process, with
             one token for a word (benchmarks/wordplay.py). Losses, advantages and optimiser are the
             package's own, with its default settings: 4 groups of 8 episodes a step, one minibatch.
             `--set` passes other settings of `[trainer]`, `--option` options of the preset. Samples are
             `--eta` versions old. Finished runs in the file `--save` are not repeated.
command      `areal-sdk train FILE --model tiny` (random, 0.36 M parameters, bytes) or `--model smollm2`, with
             default settings but for the number of steps, the supervised steps of `tiny` and the
             evaluations: 10 during the run, of 100 games or a few more. A run that has ended in the
             directory `--keep` is not repeated, and `--table` shows these alone. `--python` runs another checkout.
             With `--shared` all seeds begin with the same weights after the demonstrations.
trl          The single-turn tasks, against TRL's `GRPOTrainer` at its defaults (benchmarks/gauntlet_trl.py):
             the same weights, questions, number of samples and limit of tokens. `--trl` is a Python that
             has the package trl beside areal-sdk.

Held-out tasks are never trained, except where a task has fewer than 50: these files say so. All games of evaluations are
sampled at temperature 1. In one process a run is evaluated 20 times in 200 games, and before training in 600. The success of an
evaluation is the true one, also where the reward is noisy.

The rules were written before any run (benchmarks/verdicts.py). `start` is the success before training,
`final` the mean of the last three evaluations, `best` the highest mean of three neighbouring ones. The
kept share is (final - start) / (best - start). One success is more than another if the difference is at least
0.1 and three binomial standard errors.

collapsed          final is less than start, or has learnt and final is less than a quarter of best
learnt then fell   best is more than start, and more than a fifth of the gain (and three standard
                   errors) is lost
learnt and stayed  best is more than start, and no such loss; or a start of 0.95 that does not collapse
no signal          none of these, and the rewards of fewer than 5 % of the groups of the first quarter
                   of the steps differed
stalled            none of these, though groups differed

`largest KL` is the largest over steps of the mean KL, in nats a sampled token, of the policy before the
step from the policy after it: in one process exact, over the whole vocabulary, on the step's own samples;
of the command what the trainer reports.
"""

import argparse
import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import gauntlet_command
import gauntlet_one_process as in_process
import gauntlet_trl
from one_process import quiet
from seeds import Runs
from tables import table, write_section

from areal_sdk.builtin import ALGORITHMS

COMMAND_SECTION = """\
## The gauntlet, with the real command

`python benchmarks/gauntlet.py command --keep DIR --shared --write`: `areal-sdk train` with default settings on small tasks
that nobody tuned for. The docstring of the program describes tasks and classes; each number of a cell is one seed.
`mod7` is out of the reach of `tiny`: 32,000 demonstrations, 40 % of them right, leave it at chance too. `shout` learns half of
its reward in 30 steps (0.02 -> 0.42), and no success."""
TRL_SECTION = """\
## The gauntlet's single-turn tasks, against trl

`python benchmarks/gauntlet.py trl --keep DIR --trl PYTHON --write`: the same weights, questions, number of samples and limit
of tokens; the rest is each side's default, so trl's learning rate is 1e-6. Success of 300 held-out games or more before and
after, sampled at temperature 1; the gains have 95 % intervals of these games."""


def one_process(options: argparse.Namespace) -> None:
    quiet()
    runs = Runs(options.save)
    settings = in_process.assignments(options.set)
    of_preset = in_process.assignments(options.option)
    found: in_process.Found = {}
    orders = (options.tasks, options.seeds, options.presets, options.rates, options.eta)
    for name, seed, preset, rate, eta in itertools.product(*orders):
        rate = rate if rate == "auto" else float(rate)
        more = (options.steps, eta, options.groups)
        case = in_process.Case(name, seed, preset, rate, *more)
        key = case.key([*options.set, *options.option])
        if key not in runs and not options.table:
            runs[key] = in_process.measure(case, settings=settings, options=of_preset)
            print(in_process.line_of(case, in_process.outcome(runs[key])), flush=True)
        if key in runs:
            found[case] = in_process.outcome(runs[key])
    print(in_process.table_of(found))
    print(in_process.classes_of(found))
    if options.publish:
        published = in_process.publish(options.publish, found, in_process.OUTCOMES)
        write_section("gauntlet-one-process", in_process.section_of(published))


def command(options: argparse.Namespace) -> None:
    directory = options.keep.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[gauntlet_command.Ended]] = {}
    for name, seed in itertools.product(options.tasks, options.seeds):
        task = gauntlet_command.BY_NAME[name]
        if options.table and not gauntlet_command.kept(task, seed, directory).exists():
            continue
        if options.shared:
            first = gauntlet_trl.first_weights(task, directory, options.python)
            task = replace(task, model=first, sft_steps=0)
        ended = gauntlet_command.measure(
            task, seed=seed, directory=directory, python=options.python, more=options.set
        )
        print(ended, flush=True)
        found.setdefault(name, []).append(ended)
    rows = [
        gauntlet_command.row_of(gauntlet_command.BY_NAME[name], of) for name, of in found.items()
    ]
    classes = Counter(one.verdict for ended in found.values() for one in ended)
    summary = ", ".join(f"{num} {name}" for name, num in classes.most_common())
    told = f"{table(gauntlet_command.HEADER, rows)}\n\nOf {classes.total()} runs: {summary}."
    print(told)
    if options.write:
        write_section("gauntlet-command", f"{COMMAND_SECTION}\n\n{told}")


def against_trl(options: argparse.Namespace) -> None:
    directory = options.keep.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, seed in itertools.product(options.tasks, options.seeds):
        sides = gauntlet_trl.compare(
            gauntlet_command.BY_NAME[name],
            seed=seed,
            directory=directory,
            python=options.python,
            trl=options.trl,
        )
        rows += [gauntlet_trl.row_of(side) for side in sides]
        print(*rows[-2:], sep="\n", flush=True)
    told = table(gauntlet_trl.HEADER, rows)
    print(told)
    if options.write:
        write_section("gauntlet-trl", f"{TRL_SECTION}\n\n{told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("command", help="the real command")
    known = [*gauntlet_command.BY_NAME]
    part.add_argument("--tasks", nargs="+", choices=known, default=known)
    part.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    part.add_argument("--set", nargs="+", default=[], metavar="SECTION.KEY=VALUE")
    part.add_argument("--python", default=sys.executable, help="of the checkout that is measured")
    part.add_argument("--keep", type=Path, required=True, help="a directory for the runs")
    part.add_argument("--shared", action="store_true", help="demonstrate once, for all seeds")
    part.add_argument("--table", action="store_true", help="only show the runs in the directory")
    part.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    part.set_defaults(run=command)
    part = parts.add_parser("trl", help="single-turn tasks, against trl's GRPOTrainer")
    single = [name for name, task in gauntlet_command.BY_NAME.items() if task.is_single_turn]
    part.add_argument("--tasks", nargs="+", choices=single, default=single)
    part.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    part.add_argument("--trl", required=True, help="a Python that has trl and areal-sdk")
    part.add_argument("--python", default=sys.executable, help="of the checkout that is measured")
    part.add_argument("--keep", type=Path, required=True, help="a directory for the runs")
    part.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    part.set_defaults(run=against_trl)
    part = parts.add_parser("one-process", help="a small model in one process")
    part.add_argument("--tasks", nargs="+", choices=in_process.TASKS, default=[*in_process.TASKS])
    part.add_argument("--presets", nargs="+", choices=[*ALGORITHMS], default=["grpo"])
    part.add_argument("--rates", nargs="+", default=["2e-5", "1e-3", "5e-3"], help='or "auto"')
    part.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    part.add_argument("--steps", type=int, default=120)
    part.add_argument(
        "--eta", nargs="+", type=int, default=[1], help="versions between a sample and its step"
    )
    part.add_argument(
        "--groups", type=int, default=in_process.NUM_GROUPS, help="of 8 episodes a step"
    )
    part.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of [trainer]")
    part.add_argument("--option", nargs="+", default=[], metavar="NAME=VALUE", help="of the preset")
    part.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    part.add_argument("--table", action="store_true", help="only show the runs in the file")
    part.add_argument("--publish", metavar="LABEL", help="into docs/benchmarks.md")
    part.set_defaults(run=one_process)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
