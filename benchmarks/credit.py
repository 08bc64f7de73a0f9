"""The effect of rewards of turns, verdicts and wrong rewards on learning: a softmax table, in
seconds.

python benchmarks/credit.py [--seeds 16] [--save FILE] [--before FILE --write]

The policy is a table of logits, one row for each state. Everything between a reward and its gradient
is the package's own: `posted_outcome`, the advantage estimators, and the loss. No engine, no model.

decisive   Each of 3 turns has 4 actions: one goes on (the last one solves), three give up. Rewards
           0, ..., 0, 1 by turn; GRPO. Success of the policy after 80 groups of 4.
lengths    One turn solves, or any number of detours come first, up to 6 turns: every end but
           giving up is worth 1; GRPO. Success and turns after 40 groups of 8.
verdict    Callers reward the second of two turns (0.1 for politeness) and the episode (1 if the
           first turn was right). Share of right first turns after 200 groups of 4; GRPO.
thumbs     One caller rewards each of 6 turns of a session, each for its own action (1 of 4 right).
           Share of right actions after 400 sessions; running_baseline.
wrong      Two callers, 4 actions each, reward 1 for the right one. After 10 episodes one of them
           posts 1,000,000 once. Share of right actions after 1,300 episodes; running_baseline.

Two rows show the other credit. "Rewarded turn alone" is `decisive` with a discount of 0.001: a reward
counts for the turn that earned it, hardly for those before. "One reward" is `thumbs` where the caller
posts the sum of the turns' rewards once, for the episode.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from tables import table, write_section

from areal_sdk.algorithms import Algorithm, Evidence, PolicyTerms
from areal_sdk.algorithms.advantages import Baselines
from areal_sdk.algorithms.presets import grpo, running_baseline
from areal_sdk.gateway.sessions.posted_rewards import PostedReward
from areal_sdk.rollout.judging.verdicts import posted_outcome
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import Outcome

BEFORE = "e24ea84"
"""The last commit that compared a turn only with siblings that reached it."""
NUM_ACTIONS = 4
RIGHT = 0


class Table:
    """A policy of one row of logits a state, trained with plain gradient ascent."""

    def __init__(self, num_states: int, algorithm: Algorithm, *, seed: int, learning_rate: float):
        self.logits = torch.zeros(num_states, NUM_ACTIONS, requires_grad=True)
        self._algorithm = algorithm
        self._learning_rate = learning_rate
        self._baselines: Baselines = {}
        self._random = np.random.default_rng(seed)

    def probabilities(self) -> np.ndarray:
        return torch.softmax(self.logits, dim=-1).detach().double().numpy()

    def act(self, state: int) -> int:
        row = self.probabilities()[state]
        return int(self._random.choice(NUM_ACTIONS, p=row / row.sum()))

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """One step on all groups. A trajectory's tokens are the states and actions of its turns."""
        estimate = self._algorithm.advantages(groups, Evidence(self._baselines))
        advantages, self._baselines = estimate.advantages, estimate.baselines
        rows = [
            (trajectory, values)
            for group, of_group in zip(groups, advantages, strict=True)
            for trajectory, values in zip(group.trajectories, of_group, strict=True)
        ]
        states = torch.tensor([s for t, _ in rows for s in t.tokens[::2]])
        actions = torch.tensor([a for t, _ in rows for a in t.tokens[1::2]])
        current_T = torch.log_softmax(self.logits, dim=-1)[states, actions]
        loss = self._algorithm.objective(
            PolicyTerms(
                current_T=current_T,
                proximal_T=current_T.detach(),
                behaviour_T=current_T.detach(),
                advantages_T=torch.tensor(np.concatenate([a[1::2] for _, a in rows])),
                mask_T=torch.ones(len(states), dtype=torch.bool),
                sequences_T=torch.zeros(len(states), dtype=torch.int64),
                groups_T=torch.zeros(len(states), dtype=torch.int64),
                lags_T=torch.zeros(len(states)),
                weights_T=torch.ones(len(states)),
                divisor=float(len(states)),
            )
        )
        torch.autograd.backward(loss.sum / len(states))
        assert self.logits.grad is not None
        with torch.no_grad():
            self.logits -= self._learning_rate * self.logits.grad
            self.logits.grad = None


def episode(
    name: str, steps: Sequence[tuple[int, int]], outcome: Outcome, source: str = "t"
) -> Trajectory:
    """Each turn is two tokens: its state, which is given, and its action, which is sampled."""
    n = len(steps)
    assert outcome.reward is not None
    return Trajectory(
        episode_id=name,
        task_id=source,
        tokens=tuple(token for step in steps for token in step),
        loss_mask=(False, True) * n,
        logprobs=(0.0, -1.0) * n,
        versions=(-1, 0) * n,
        temperatures=(1.0, 1.0) * n,
        turn_of_token=tuple(t for turn in range(n) for t in (-1, turn)),
        reward=outcome.reward,
        turn_rewards=outcome.turn_rewards,
    )


def posted(num_turns: int, *rewards: tuple[float, int | None]) -> Outcome:
    """The outcome of the (reward, turn) pairs that a caller posts."""
    outcome = posted_outcome([PostedReward(*pair) for pair in rewards], num_turns=num_turns)
    assert outcome is not None, "a caller posts at least one"
    return outcome


def play_decisive(policy: Table, name: str) -> Trajectory:
    steps: list[tuple[int, int]] = []
    for state in range(3):
        steps.append((state, policy.act(state)))
        if steps[-1][1] != RIGHT:
            break
    solved = len(steps) == 3 and steps[-1][1] == RIGHT
    rewards = (*[0.0] * (len(steps) - 1), float(solved))
    return episode(name, steps, Outcome.scored(float(solved), turn_rewards=rewards))


def decisive(seed: int, discount: float = 1.0) -> dict[str, float]:
    policy = Table(3, grpo(discount=discount), seed=seed, learning_rate=1.0)
    for _ in range(80):
        rows = tuple(play_decisive(policy, str(i)) for i in range(4))
        policy.learn([TrajectoryGroup("g", "t", rows)])
    return {"success": float(policy.probabilities()[:, RIGHT].prod())}


def decisive_alone(seed: int) -> dict[str, float]:
    return decisive(seed, discount=1e-3)


def play_lengths(policy: Table, name: str) -> Trajectory:
    """Action 0 solves, 1 gives up, 2 and 3 are detours."""
    steps: list[tuple[int, int]] = []
    for state in range(6):
        steps.append((state, policy.act(state)))
        if steps[-1][1] in (RIGHT, 1):
            break
    solved = float(steps[-1][1] != 1)
    rewards = (*[0.0] * (len(steps) - 1), solved)
    return episode(name, steps, Outcome.scored(solved, turn_rewards=rewards))


def lengths(seed: int) -> dict[str, float]:
    policy = Table(6, grpo(), seed=seed, learning_rate=1.0)
    for _ in range(40):
        rows = tuple(play_lengths(policy, str(i)) for i in range(8))
        policy.learn([TrajectoryGroup("g", "t", rows)])
    rows = tuple(play_lengths(policy, str(i)) for i in range(500))
    return {
        "success": mean(t.reward for t in rows),
        "turns": mean(len(t.turn_rewards) for t in rows),
    }


def verdict(seed: int) -> dict[str, float]:
    policy = Table(2, grpo(), seed=seed, learning_rate=1.0)
    for _ in range(200):
        rows = []
        for i in range(4):
            steps = [(state, policy.act(state)) for state in range(2)]
            is_right, is_polite = (float(action == RIGHT) for _, action in steps)
            outcome = posted(2, (0.1 * is_polite, 1), (is_right, None))
            rows.append(episode(str(i), steps, outcome))
        policy.learn([TrajectoryGroup("g", "t", tuple(rows))])
    return {"right first turns": float(policy.probabilities()[0, RIGHT])}


def thumbs(seed: int, by_turn: bool = True) -> dict[str, float]:
    policy = Table(6, running_baseline(), seed=seed, learning_rate=1.0)
    for number in range(100):
        groups = []
        for i in range(4):
            steps = [(state, policy.act(state)) for state in range(6)]
            given: list[tuple[float, int | None]] = [
                (float(action == RIGHT), turn) for turn, (_, action) in enumerate(steps)
            ]
            if not by_turn:
                given = [(sum(reward for reward, _ in given), None)]
            name = f"{number}-{i}"
            row = episode(name, steps, posted(6, *given), "someone")
            groups.append(TrajectoryGroup(name, "someone", (row,), "someone"))
        policy.learn(groups)
    return {"right actions": float(policy.probabilities()[:, RIGHT].mean())}


def thumbs_once(seed: int) -> dict[str, float]:
    return thumbs(seed, by_turn=False)


def wrong(seed: int, amount: float = 1e6) -> dict[str, float]:
    policy = Table(2, running_baseline(), seed=seed, learning_rate=1.0)
    number = 0
    while number < 1300:
        groups = []
        for source in (0, 1) * 4:
            action = policy.act(source)
            reward = amount if number == 10 else float(action == RIGHT)
            name = str(number)
            row = episode(name, [(source, action)], Outcome.scored(reward), f"caller {source}")
            groups.append(TrajectoryGroup(name, name, (row,), f"caller {source}"))
            number += 1
        policy.learn(groups)
    posted_it, other = policy.probabilities()[:, RIGHT]
    return {"right, who posted it": float(posted_it), "right, the other": float(other)}


def right_one(seed: int) -> dict[str, float]:
    return wrong(seed, amount=1.0)


TASKS: dict[str, Callable[[int], dict[str, float]]] = {
    "decisive": decisive,
    "decisive, rewarded turn alone": decisive_alone,
    "lengths": lengths,
    "verdict": verdict,
    "thumbs": thumbs,
    "thumbs, one reward": thumbs_once,
    "wrong": wrong,
    "wrong, with 1 instead": right_one,
}


def measure(seeds: int) -> Iterator[tuple[str, str]]:
    for name, play in TASKS.items():
        found = [play(seed) for seed in range(seeds)]
        for key in found[0]:
            values = [row[key] for row in found]
            yield f"{name}: {key}", f"{mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--save", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--before", type=Path, help="numbers that another version saved")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    for what, value in measure(options.seeds):
        found[what] = value
        print(f"{what}  {value}", flush=True)
    if options.save:
        options.save.write_text(json.dumps(found))
    if options.write:
        before = json.loads(options.before.read_text()) if options.before else {}
        rows = [(what, before.get(what, "-"), value) for what, value in found.items()]
        write_section(
            "credit",
            "## Credit\n\n`python benchmarks/credit.py --before OLD.json --write`, with `OLD.json` saved by "
            f"the same program at commit {BEFORE}. Each cell is the mean over {options.seeds} seeds "
            "(lowest to highest). The docstring of the program describes the tasks.\n\n"
            + table(("task", "before", "now"), rows),
        )


if __name__ == "__main__":
    main()
