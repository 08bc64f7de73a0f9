"""Walk to a goal in six turns: a grid of 5 x 5, one step a turn."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from areal_sdk import Environment, Message, StepResult, Task

SIZE, NUM_TURNS = 5, 6
MOVES = {"n": (0, -1), "s": (0, 1), "e": (1, 0), "w": (-1, 0)}
NUM_DEMONSTRATIONS = 2000
Place = tuple[int, int]


class Grid(Environment):
    """The first message tells place and goal, the others the place. Success is to arrive in time."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.place: Place = tuple(task.data["place"])
        self.goal: Place = tuple(task.data["goal"])
        self.num_left = NUM_TURNS
        return [_user(*self.place, *self.goal)]

    async def step(self, message: Message) -> StepResult:
        self.num_left -= 1
        self.place = moved(self.place, (message.get("content") or "").strip())
        if self.place == self.goal:
            return StepResult(reward=1.0, done=True, success=True)
        if self.num_left == 0:
            return StepResult(reward=0.0, done=True, success=False)
        return StepResult([_user(*self.place)])


def moved(place: Place, move: str) -> Place:
    """A step past the border, or a word that is no move, changes nothing."""
    x, y = (at + by for at, by in zip(place, MOVES.get(move, (0, 0)), strict=True))
    return (x, y) if 0 <= x < SIZE and 0 <= y < SIZE else place


def tasks(split: str) -> Iterator[Task]:
    """Goals are 2 to 6 steps away; every seventh pair of places is held out."""
    for number, (x, y, to_x, to_y) in enumerate(product(range(SIZE), repeat=4)):
        is_near = 2 <= abs(x - to_x) + abs(y - to_y) <= NUM_TURNS
        if is_near and (number % 7 == 0) == (split == "eval"):
            yield Task(id=f"{x}{y}-{to_x}{to_y}", data={"place": [x, y], "goal": [to_x, to_y]})


def demonstrations() -> Iterator[list[Message]]:
    """Walks of a player whose step leads to the goal six times in ten; else it is any step."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        task = generator.choice(known)
        place, goal = tuple(task.data["place"]), tuple(task.data["goal"])
        messages = [_user(*place, *goal)]
        for _ in range(NUM_TURNS):
            good = [m for m in MOVES if _distance(moved(place, m), goal) < _distance(place, goal)]
            move = generator.choice(good if generator.random() < 0.6 else list(MOVES))
            place = moved(place, move)
            messages.append({"role": "assistant", "content": move})
            if place == goal:
                break
            messages.append(_user(*place))
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]


def _distance(place: Place, goal: Place) -> int:
    return abs(place[0] - goal[0]) + abs(place[1] - goal[1])


def _user(*numbers: int) -> Message:
    return {"role": "user", "content": " ".join(map(str, numbers))}
