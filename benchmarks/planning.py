"""The cost of a large batch before anything is computed: its way to a rank, and the rank's plan.

    python benchmarks/planning.py [--episodes 512] [--tokens 32768] [--ranks 8] [--write]

Groups of 8 siblings share a prompt of 1,024 tokens. Then 200 sampled tokens and 312 of a tool take turns.
`encoded` happens in the main process, `decoded` and `planned` on each rank: advantages, examples, trees,
and the rank's own batches. The memory of the main process is that of the trajectories.
"""

import argparse
import time
import tracemalloc

import numpy as np
from tables import table, write_section

from areal_sdk.algorithms.advantages.estimator import Evidence
from areal_sdk.algorithms.presets import grpo
from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.group_wire import decode_groups, encode_groups
from areal_sdk.fsdp.step.planning import Planner
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

PROMPT, SAMPLED, ANSWERED = 1024, 200, 312
SIBLINGS = 8


def make_groups(num_episodes: int, num_tokens: int) -> list[TrajectoryGroup]:
    generator = np.random.default_rng(0)
    period = SAMPLED + ANSWERED
    place = np.arange(num_tokens) - PROMPT
    is_sampled = (place >= 0) & (place % period < SAMPLED)
    turns = np.where(is_sampled, place // period, -1)
    groups = []
    for number in range(num_episodes // SIBLINGS):
        prompt = generator.integers(0, 150_000, PROMPT)
        rows = []
        for sibling in range(SIBLINGS):
            rest = generator.integers(0, 150_000, num_tokens - PROMPT)
            rows.append(
                Trajectory(
                    episode_id=f"{number}.{sibling}",
                    task_id=str(number),
                    tokens=tuple(np.concatenate([prompt, rest]).tolist()),
                    loss_mask=tuple(is_sampled.tolist()),
                    logprobs=tuple(
                        np.where(is_sampled, -generator.random(num_tokens), 0.0).tolist()
                    ),
                    versions=tuple(np.where(is_sampled, 7, -1).tolist()),
                    temperatures=(1.0,) * num_tokens,
                    turn_of_token=tuple(turns.tolist()),
                    reward=float(sibling % 2),
                )
            )
        groups.append(TrajectoryGroup(str(number), str(number), tuple(rows)))
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The price of a large batch before the first forward."
    )
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="the table in docs/benchmarks.md")
    options = parser.parse_args()

    tracemalloc.start()
    groups = make_groups(options.episodes, options.tokens)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    total = options.episodes * options.tokens
    seconds: dict[str, float] = {}

    began = time.process_time()
    payload, buffers = encode_groups(groups)
    seconds["encoded"] = time.process_time() - began
    began = time.process_time()
    decoded = decode_groups(payload, buffers)
    seconds["decoded"] = time.process_time() - began
    began = time.process_time()
    algorithm = grpo()
    evidence = Evidence()
    estimate = algorithm.advantages(decoded, evidence)
    planner = Planner(TrainerSection(tokens_per_microbatch=65536), Ranks(0, options.ranks))
    plan = planner.plan(decoded, algorithm, estimate, evidence, version=8)
    seconds["planned"] = time.process_time() - began

    rows = [
        ("memory of a token in the main process", f"{held / total:.1f} bytes"),
        *((f"CPU-s until {name}", f"{value:.2f}") for name, value in seconds.items()),
    ]
    text = table(
        ("", f"{options.episodes} x {options.tokens} tokens, rank 0 of {options.ranks}"), rows
    )
    print(text)
    print(f"{plan.num_terms} terms, {len(plan.minibatches)} minibatches")
    if options.write:
        command = f"`python benchmarks/planning.py --ranks {options.ranks} --write`"
        write_section(
            "planning", f"## A large batch before the first forward\n\n{command}.\n\n{text}"
        )


if __name__ == "__main__":
    main()
