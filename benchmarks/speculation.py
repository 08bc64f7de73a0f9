"""Speculation of the local engine: what drafts give, that they cost little where they lose, and that they change nothing.

    python benchmarks/speculation.py [RUN] [--dtype bfloat16] [--rounds 3] [--write]
    python benchmarks/speculation.py --chi-square [--tokens 1000000]

Every workload is played by two engines in turns, one with drafts and one without. RUN is the directory of a run of
`examples/agents/calculator.toml`: the prompts of its first and last episodes are sampled again, by the model that it
began with and by the one that it made. CPU time is that of the engine's steps, with one thread.

`--chi-square` samples tokens of the tiny model with drafts in every step, and compares how often each token follows
each token at each place of an answer with plain sampling (and plain sampling with itself, under other seeds).
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import thread_time

import torch
from tables import table, write_section
from tokenizers import Tokenizer

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.speculation import Pace, Speculation
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.models import resolve_model
from areal_sdk.records.run import Run

CONCURRENCY = (1, 8, 32)
OPTIONS = {"device": "cpu", "kv_memory_gb": 0.5, "max_context": 1024}
GROUP = 8
"""Number of answers to one prompt."""
CODE = """def total_price(items, tax_rate):
    subtotal = 0
    for item in items:
        subtotal += item.price * item.quantity
    return subtotal + subtotal * tax_rate
"""
CALL = '{{"name": "get_weather", "arguments": {{"city": "{}", "unit": "celsius"}}}}'
CITIES = ("Berlin", "Oslo", "Madrid", "Cairo", "Lima", "Delhi", "Quito", "Seoul")


class EagerPace(Pace):
    """Drafts in every step, whatever they cost."""

    is_trial = is_plain = False
    least_chance = 0.1


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    model: Path
    prompts: Sequence[tuple[int, ...]]
    max_new_tokens: int
    ignore_eos: bool = False
    num_batches: int = 4
    """Number of requests of a round, in batches of those that are sampled together."""

    def requests(self, number: int, count: int) -> Iterator[GenerateRequest]:
        """The requests of a round: other prompts and other seeds each time."""
        for i in range(number * count, (number + 1) * count):
            prompt = self.prompts[i // GROUP % len(self.prompts)]
            yield GenerateRequest(prompt, self.max_new_tokens, seed=i, ignore_eos=self.ignore_eos)


@dataclass(slots=True)
class Played:
    tokens: int = 0
    steps_of_rows: int = 0
    """Number of steps, summed over the requests that decoded in them."""
    seconds: float = 0.0


def play(core: EngineCore, requests: Sequence[GenerateRequest], concurrency: int) -> Played:
    """Sample all requests, so many together."""
    waiting, played = list(reversed(requests)), Played()
    while waiting or core.has_work:
        while waiting and len(core.scheduler.running) + len(core.scheduler.waiting) < concurrency:
            core.add(waiting.pop())
        started = thread_time()
        sampled = core.step()
        played.seconds += thread_time() - started
        played.tokens += len(sampled)
        played.steps_of_rows += len({id(token.sequence) for token in sampled})
    return played


def chat(tokenizer: Tokenizer, *messages: str) -> tuple[int, ...]:
    """A conversation whose messages are the user's and the assistant's in turns."""
    roles = ("user", "assistant")
    text = "".join(
        f"<|im_start|>{roles[i % 2]}\n{message}<|im_end|>\n" for i, message in enumerate(messages)
    )
    return tuple(tokenizer.encode(f"{text}<|im_start|>assistant\n", add_special_tokens=False).ids)


def workloads(run: Path | None) -> Iterator[Workload]:
    model = resolve_model("smollm2")
    if run is not None:
        record = Run(run)
        rows = [row for row in record.episodes() if row["split"] == "train" and row["num_turns"]]
        rows.sort(key=lambda row: row["time"])
        for name, where, part in [
            ("the demo, first episodes", model, rows[:128]),
            ("the demo, last episodes", run / "checkpoints" / "final", rows[-128:]),
        ]:
            prompts = {turn.prompt_tokens for e in record.whole(part) for turn in e.turns}
            yield Workload(name, where, sorted(prompts, key=hash), 16, num_batches=8)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    calls = [
        chat(
            tokenizer,
            "weather in Paris",
            CALL.format("Paris"),
            "weather in Rome",
            CALL.format("Rome"),
            f"weather in {city}",
        )
        for city in CITIES
    ]
    yield Workload("tool calls in JSON", model, calls, 40)
    code = [
        chat(
            tokenizer, f"Rename `subtotal` to `{name}`. Print the whole code:\n```python\n{CODE}```"
        )
        for name in ("amount", "net", "base", "raw_sum", "cost", "gross", "part", "first")
    ]
    yield Workload("code with a name changed", model, code, 64)
    stories = [chat(tokenizer, f"Tell a story about {city}.") for city in CITIES]
    yield Workload("stories", model, stories, 64, ignore_eos=True)
    numbers = Random(0)
    noise = [tuple(numbers.randrange(3, 260) for _ in range(63)) for _ in range(64)]
    yield Workload(
        "noise (tiny model)", resolve_model("tiny"), noise, 48, ignore_eos=True, num_batches=16
    )


def compare(workload: Workload, concurrency: int, rounds: int, dtype: str) -> list[object]:
    """A row of the table. The first round warms up: both engines see the same requests in it too."""
    cores = {
        on: EngineCore(
            workload.model,
            LocalOptions.model_validate({**OPTIONS, "dtype": dtype, "speculate": on}),
        )
        for on in (False, True)
    }
    figures: dict[bool, list[Played]] = {False: [], True: []}
    for number in range(rounds + 1):
        requests = list(workload.requests(number, max(16, workload.num_batches * concurrency)))
        for on in (False, True) if number % 2 else (True, False):
            figures[on].append(play(cores[on], requests, concurrency))
    plain, drafting = figures[False][1:], figures[True][1:]
    each = [
        (a.seconds / a.tokens) / (b.seconds / b.tokens)
        for a, b in zip(plain, drafting, strict=True)
    ]
    per_step = sum(p.tokens for p in drafting) / sum(p.steps_of_rows for p in drafting)
    ms = [1e3 * statistics.median(p.seconds / p.tokens for p in part) for part in (plain, drafting)]
    row = [workload.name, concurrency, f"{per_step:.2f}", f"{ms[0]:.2f}", f"{ms[1]:.2f}"]
    return [*row, f"{statistics.median(each):.2f}x ({min(each):.2f} to {max(each):.2f})"]


# the distribution


def counts(
    *, speculate: bool, num_tokens: int, salt: int
) -> tuple[Counter[tuple[int, ...]], float]:
    """Counts of each token after each token at each place of 16, and the tokens a step."""
    core = EngineCore(
        resolve_model("tiny"), LocalOptions(dtype="float32", device="cpu", max_context=256)
    )
    if speculate:
        core.speculation = Speculation(thread_time, EagerPace)
    numbers = Random(salt)
    length = 16
    sampling = Sampling(temperature=0.07)
    found: Counter[tuple[int, ...]] = Counter()
    num_rows = num_sampled = 0
    left = num_tokens // length
    while left or core.has_work:
        while left and len(core.scheduler.running) + len(core.scheduler.waiting) < 32:
            seed = numbers.getrandbits(48)
            core.add(GenerateRequest((70, 71, 72), length, sampling, seed=seed, ignore_eos=True))
            left -= 1
        sampled = core.step()
        num_sampled += len(sampled)
        num_rows += len({id(token.sequence) for token in sampled})
        for token in sampled:
            if token.finish is not None:
                output = token.sequence.output
                found.update((i, *output[max(0, i - 1) : i + 1]) for i in range(length))
    return found, num_sampled / num_rows


def chi_square(one: Mapping[tuple[int, ...], int], other: Mapping[tuple[int, ...], int]) -> str:
    """The two-sample statistic over cells that hold at least ten; the rest of a place is one cell."""
    cells: dict[tuple[int, ...], list[int]] = {}
    for key in {*one, *other}:
        pair = one.get(key, 0), other.get(key, 0)
        cell = cells.setdefault(key if sum(pair) >= 10 else key[:1], [0, 0])
        cell[0] += pair[0]
        cell[1] += pair[1]
    totals = [sum(cell[i] for cell in cells.values()) for i in (0, 1)]
    up, down = math.sqrt(totals[1] / totals[0]), math.sqrt(totals[0] / totals[1])
    statistic = sum((up * a - down * b) ** 2 / (a + b) for a, b in cells.values())
    # The cells of a place add up to the number of answers.
    degrees = len(cells) - len({key[0] for key in cells})
    deviations = (statistic - degrees) / math.sqrt(2 * degrees)
    return (
        f"{statistic:.0f} with {degrees} degrees of freedom ({deviations:+.1f} standard deviations)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    parser.add_argument("--concurrency", type=int, nargs="*", default=CONCURRENCY)
    parser.add_argument("--chi-square", action="store_true")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.chi_square:
        plain, _ = counts(speculate=False, num_tokens=args.tokens, salt=0)
        again, _ = counts(speculate=False, num_tokens=args.tokens, salt=1)
        drafting, per_step = counts(speculate=True, num_tokens=args.tokens, salt=2)
        print(f"{args.tokens} tokens a side, {per_step:.2f} tokens a step with drafts")
        print("plain against plain:", chi_square(plain, again))
        print("drafts against plain:", chi_square(drafting, plain))
        return
    rows = []
    for workload in workloads(args.run):
        for concurrency in args.concurrency if args.only in workload.name else ():
            rows.append(compare(workload, concurrency, args.rounds, args.dtype))
            print(*rows[-1], flush=True)
    header = [
        "workload",
        "requests",
        "tokens a step",
        "CPU-ms a token, plain",
        "with drafts",
        "faster",
    ]
    text = table(header, rows)
    print(text)
    if args.write:
        command = f"python benchmarks/speculation.py RUN --dtype {args.dtype} --rounds {args.rounds} --write"
        note = (
            f"`{command}`, torch {torch.__version__}, one thread; RUN is a run of the demo. Groups of {GROUP} "
            "answers at temperature 1. Both engines played the same requests in turns; figures are medians of "
            "the rounds, in brackets the lowest and highest ratio. "
            '"Tokens a step" counts the tokens of a request in a step with drafts switched as the engine sees fit.'
        )
        title = f"## Speculation: SmolLM2 in {args.dtype}, CPU time a token"
        write_section(f"speculation-{args.dtype}", f"{title}\n\n{note}\n\n{text}")


if __name__ == "__main__":
    main()
