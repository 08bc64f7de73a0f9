"""The plugin is found once it is installed, and its reward keeps the contract."""

from my_plugin.rewards import brevity

from areal_sdk.testing import check_reward, make_episode, registered


async def test_brevity_judges_whatever_a_policy_says() -> None:
    episodes = [make_episode("short"), make_episode("a " * 75), make_episode("a " * 200)]
    verdicts = await check_reward(brevity, episodes)
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.5, 0.0]


def test_the_reward_is_registered_with_its_options() -> None:
    reward = registered("reward", "brevity", max_words=1)
    assert reward(make_episode("two words")) == 0.0
