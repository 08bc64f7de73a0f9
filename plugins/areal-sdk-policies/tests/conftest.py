"""Groups of two policies, made by hand."""

from collections.abc import Callable

import pytest

from areal_sdk.trajectory import Trajectory, TrajectoryGroup

MakeGroup = Callable[..., TrajectoryGroup]


@pytest.fixture
def make_group() -> MakeGroup:
    """Make a group of four episodes in which a planner and a coder each took a turn."""

    def make(number: int, *policies: str) -> TrajectoryGroup:
        def trajectory(policy: str, sibling: int) -> Trajectory:
            shift = 3 * number + 11 * len(policy) + sibling
            tokens = [(7 * shift + 13 * place) % 250 for place in range(24)]
            mask = [place >= 16 for place in range(24)]
            return Trajectory(
                episode_id=f"{number}-{sibling}",
                task_id=f"task-{number}",
                tokens=tokens,
                loss_mask=mask,
                logprobs=[-4.0 - 0.1 * place if m else 0.0 for place, m in enumerate(mask)],
                versions=[0 if m else -1 for m in mask],
                temperatures=[1.0] * 24,
                turn_of_token=[(policies.index(policy) if m else -1) for m in mask],
                reward=float((sibling + len(policy)) % 3),
                policy=policy,
            )

        made = [trajectory(policy, sibling) for sibling in range(4) for policy in policies]
        return TrajectoryGroup(f"g{number}", f"task-{number}", tuple(made))

    return make
