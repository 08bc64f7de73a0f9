"""A server of OpenEnv's own package: count up to a number by steps of 1 to 3. `python count_up.py PORT`."""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field


class Add(Action):
    """Add a number to the sum."""

    amount: int = Field(ge=1, le=3, description="1, 2 or 3")


class Sum(Observation):
    total: int
    target: int


class CountUp(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._total, self._target = 0, 5
        self._state = State(episode_id="", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, target: int = 5) -> Sum:
        if target < 1:
            raise ValueError("the target is at least 1")
        self._total, self._target = 0, target
        return Sum(total=0, target=target)

    def step(self, action: Add, timeout_s: float | None = None) -> Sum:
        if self._total + action.amount > self._target:
            raise ValueError(f"{action.amount} is too much")
        self._total += action.amount
        is_over = self._total == self._target
        return Sum(
            total=self._total, target=self._target, done=is_over, reward=1.0 if is_over else 0.0
        )

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_app(CountUp, Add, Sum, max_concurrent_envs=2)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
