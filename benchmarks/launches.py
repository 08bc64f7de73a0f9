"""Counts of launches, waits and copied bytes of a step on the pretended device, before and now, by place.

    python benchmarks/launches.py [--before DIR] [--write]

DIR is another checkout, such as `git worktree add ../before COMMIT`. The counts do not depend on the machine.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tables import table, write_section

HERE = Path(__file__).parents[1]
DECODED, FEW, MANY = 8, 7, 9
"""Requests of a decoding step; groups of two steps of the trainer, each in a micro-batch of its own."""
CASES = {
    "decode": "a decoding step, 8 requests",
    "decode, top-p": "the same with top-p and penalties",
    "decode, mixture": "the same, a mixture of experts",
    "micro-batch": "one more micro-batch of the trainer",
    "micro-batch, gspo": "the same with gspo",
    "step": f"a step of the trainer, {FEW} micro-batches",
    "held step": "the same, the update held back",
}
BY_PLACE = ("decode", "decode, top-p", "decode, mixture", "micro-batch", "held step")
"""The cases whose places are shown."""
Counts = dict[str, dict[str, Any]]
"""Launches, waits and bytes of each case, and its waits by place."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--before", type=Path, metavar="DIR", help="another checkout, for comparison"
    )
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--counts-of", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.counts_of is not None:
        print(json.dumps(measure(options.counts_of)))
        return
    now = counts_of(HERE)
    text = report(now, counts_of(options.before) if options.before else None)
    print(text)
    if options.write:
        write_section("launches", text)


def counts_of(checkout: Path) -> Counts:
    """The counts of a checkout, in a process that imports its package and this checkout's device."""
    command = [sys.executable, str(Path(__file__)), "--counts-of", str(checkout.resolve())]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    counts: Counts = json.loads(done.stdout.splitlines()[-1])
    return counts


def report(now: Counts, before: Counts | None) -> str:
    sides = [side for side in (before, now) if side is not None]
    names = ("before", "now") if before is not None else ("now",)

    def cells(case: str, what: str) -> list[str]:
        return [f"{side[case][what]:g}" if case in side else "" for side in sides]

    head = [f"{what}, {name}" for what in ("launches", "waits", "bytes") for name in names]
    rows = [
        [title, *(cell for what in ("launches", "waits", "bytes") for cell in cells(case, what))]
        for case, title in CASES.items()
    ]
    places = sorted(
        {(case, place) for side in sides for case in BY_PLACE for place in side[case]["places"]},
        key=lambda pair: (list(CASES).index(pair[0]), pair[1]),
    )
    by_place = [
        [CASES[case], f"`{place}`", *(f"{side[case]['places'].get(place, 0):g}" for side in sides)]
        for case, place in places
    ]
    text = f"""
## Launches and waits, on a pretended device

`python benchmarks/launches.py{" --before DIR" if before else ""} --write`: a model of two layers, float32. Counts of a
device that computes on the CPU and refuses what CUDA refuses (`tests/pretended`): they show how often the host waits for
a GPU, not how long, and nothing of time, memory or races. "Launches" are operators; CUDA may need several kernels for
one. "Waits" are reads of values, and copies to the device for which the host waits.

{table(["", *head], rows)}

The waits by place:

{table(["", "place", *names], by_place)}
"""
    return text.strip()


def measure(checkout: Path) -> Counts:
    sys.path[:0] = [str(checkout), str(HERE)]
    import tests

    tests.__path__.insert(0, str(HERE / "tests"))
    from tests.pretended import counting, install

    counting.OWN = (f"{checkout}/areal_sdk/",)
    counting.ROOT = checkout
    install()
    counts: Counts = {}
    with TemporaryDirectory() as temporary:
        for case, seen in (*decoded(Path(temporary)), *trained(Path(temporary))):
            counts[case] = seen
    return counts


def decoded(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A step in which each of some requests gets a token."""
    import torch

    from areal_sdk.engine import Sampling
    from areal_sdk.models.tiny import make_tiny_model
    from tests.backends.local.reference import make_checkpoint
    from tests.pretended import NAME, watch
    from tests.pretended.engines import core_on, request

    dense = make_tiny_model(directory / "dense", num_layers=2)
    mixture = make_checkpoint(directory / "mixture", "qwen3-moe")
    restricted = Sampling(top_p=0.9, repetition_penalty=1.2, presence_penalty=0.5)
    for case, model_dir, sampling in (
        ("decode", dense, Sampling()),
        ("decode, top-p", dense, restricted),
        ("decode, mixture", mixture, Sampling()),
    ):
        core = core_on(torch.device(NAME), model_dir)
        for number in range(DECODED):
            core.add(request(sampling, number=2 + number))
        core.step()
        with watch() as seen:
            core.step()
        yield case, as_counts(seen)


def trained(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps with a micro-batch for each group; one micro-batch is the difference of two steps."""
    from tests.fsdp.specs import changed, trainer_spec, with_preset

    plain = trainer_spec(
        directory / "dense",
        precision="float32",
        warmup_steps=0,
        trust_region=0.0,
        tokens_per_microbatch=100,
    )
    for case, preset in (("micro-batch", "grpo"), ("micro-batch, gspo", "gspo")):
        spec = with_preset(plain, preset)
        few, many = (as_counts(step_of(spec, num_groups)) for num_groups in (FEW, MANY))
        yield case, difference(many, few, divisor=MANY - FEW)
        if preset == "grpo":
            yield "step", few
    held = changed(plain, trust_region=1e-6, learning_rate=1e-2)
    yield "held step", as_counts(step_of(held, FEW))


def step_of(spec: Any, num_groups: int) -> Any:
    import torch

    from areal_sdk.fsdp.collectives import Ranks
    from areal_sdk.fsdp.step import RankTrainer
    from tests.fsdp.episodes import make_groups
    from tests.pretended import NAME, watch

    trainer = RankTrainer(spec, Ranks(device=torch.device(NAME)))
    groups = make_groups(num_groups)
    trainer.step(groups[:1], version=0)  # what is tried and made once
    with watch() as seen:
        trainer.step(groups, version=0)
    return seen


def as_counts(seen: Any) -> dict[str, Any]:
    from tests.pretended.counting import WAITS

    return {
        "launches": seen.num_launches,
        "waits": seen.num_waits,
        "bytes": seen.num_copied,
        "places": without_lines(seen.places(*WAITS)),
    }


def without_lines(places: dict[str, int]) -> dict[str, int]:
    """The same by file and function: lines differ between checkouts."""
    found: dict[str, int] = {}
    for place, count in places.items():
        file, _, rest = place.partition(":")
        name = f"{file.removeprefix('areal_sdk/')} {rest.partition(' ')[2]}".strip()
        found[name] = found.get(name, 0) + count
    return found


def difference(many: dict[str, Any], few: dict[str, Any], *, divisor: float) -> dict[str, Any]:
    less: Callable[[float, float], float] = lambda a, b: (a - b) / divisor  # noqa: E731
    places = {
        place: less(count, few["places"].get(place, 0)) for place, count in many["places"].items()
    }
    return {
        **{what: less(many[what], few[what]) for what in ("launches", "waits", "bytes")},
        "places": {place: count for place, count in places.items() if count},
    }


if __name__ == "__main__":
    main()
