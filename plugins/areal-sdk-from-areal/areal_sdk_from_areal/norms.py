"""`reward_norm` and `adv_norm`: how AReaL centres and scales rewards and advantages, as presets."""

from dataclasses import dataclass

from areal_sdk_from_areal.outcome import Keys


@dataclass(frozen=True, slots=True)
class Norms:
    """The level of centring and of scaling: `group`, `batch`, or None for not at all."""

    reward_mean: str | None = None
    reward_std: str | None = None
    advantage: str | None = None
    leave_one_out: bool = False

    @classmethod
    def read(cls, keys: Keys) -> "Norms":
        mean, std = _levels(keys, "reward_norm", ("group_reward_norm",), "group")
        advantage, _ = _levels(keys, "adv_norm", (), "batch")
        out = bool(keys.get("actor.reward_norm.mean_leave1out"))
        return cls(mean, std, advantage, out)


def _levels(
    keys: Keys, name: str, older: tuple[str, ...], level: str
) -> tuple[str | None, str | None]:
    """Mean and deviation of a norm: a table, or in older files true or false."""
    if any(keys.get(f"actor.{key}") is True for key in (name, *older)):
        return level, level
    if not any(key.startswith(f"actor.{name}.") for key in keys):
        return None, None
    mean = keys.get(f"actor.{name}.mean_level", "batch")
    std = keys.get(f"actor.{name}.std_level", "batch")
    return mean, std


BY_GROUP = Norms("group", "group")
DOES = {
    "areal": Norms(advantage="batch"),
    "ppo": Norms(advantage="batch"),
    "rloo": Norms("group", None, leave_one_out=True),
    "litepo": Norms("group", "batch"),
    "drgrpo": Norms("group", None),
}
"""The normalisation of each preset. The others normalise as `grpo`."""


def norms_of(preset: str) -> Norms:
    return DOES.get(preset, BY_GROUP)
