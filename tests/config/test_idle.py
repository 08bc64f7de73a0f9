"""A setting that was given and can change nothing is named; a setting that was not given never is."""

import pytest

from areal_sdk.config import Config, idle_settings, parse_config


def idle(config: Config) -> list[str]:
    return idle_settings(config, engine=config.engine.kind)


def test_the_defaults_are_silent() -> None:
    assert idle(Config()) == []


def test_a_file_with_every_default_written_out_is_silent() -> None:
    assert idle(parse_config(Config().model_dump(exclude_none=True))) == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"cluster": {"listen_port": 5000}}, "cluster.listen_port = 5000 changes nothing: every"),
        ({"algorithm": {"grpo": {"clip_low": 0.1}}}, "trainer.num_minibatches"),
        ({"algorithm": {"name": "sapo", "sapo": {"tau_positive": 2}}}, "trainer.num_minibatches"),
        ({"algorithm": {"name": "ppo", "ppo": {"value_clip": 0.1}}}, "trainer.num_minibatches"),
        (
            {"algorithm": {"name": "dapo", "dapo": {"overlong_margin": 9}}},
            "without algorithm.dapo.overlong_limit",
        ),
        ({"algorithm": {"running_baseline": {"max_surprise": 9}}}, "the algorithm is 'grpo'"),
        ({"trainer": {"lora": {"alpha": 8}}}, "no adapter without trainer.lora.rank"),
        ({"trainer": {"trust_region": 0.1}, "finetune": {"objective": "sft"}}, "from episodes"),
        ({"sft": {"batch": 8}}, "no warm-up without sft.steps"),
        ({"rollout": {"stale": "drop", "wait_s": 5}}, 'unless rollout.stale = "wait"'),
        ({"eval": {"before": False, "after": False, "samples": 4}}, "nothing is measured"),
        ({"env": {"name": "maze", "other": {"size": 3}}}, "[env.other] changes nothing"),
        ({"engine": {"sglang": {"servers": 2}}}, "[engine.sglang] changes nothing"),
        (
            {
                "fields": {"question": "nowhere"},
                "mixture": [{"tasks": "a.jsonl", "fields": {"id": "nr"}}, {"tasks": "a_dataset"}],
            },
            "fields.question = 'nowhere' changes nothing: no file of the mixture",
        ),
        ({"env": "maze", "options": {"agent": {"style": "terse"}}}, "no agent plays"),
    ],
)
def test_a_setting_that_can_change_nothing_says_why(values: dict[str, object], told: str) -> None:
    (line,) = idle(parse_config(values))
    assert told in line
    assert "changes nothing" in line


def test_a_rate_that_was_meant_for_all_weights_is_remarked_on() -> None:
    (line,) = idle(parse_config({"trainer": {"lora": {"rank": 8}, "learning_rate": 2e-5}}))
    assert "trainer.learning_rate = 2e-05 changes little: an adapter" in line
    assert "try 0.0002" in line


def test_a_rate_that_should_follow_and_has_nothing_to_follow_is_remarked_on() -> None:
    (line,) = idle(parse_config({"trainer": {"trust_region": 0.0}}))
    assert 'trainer.learning_rate = "auto" follows nothing where trainer.trust_region = 0' in line
    assert "stays 2e-05" in line


@pytest.mark.parametrize(
    "values",
    [
        {"trainer": {"trust_region": 0.0, "learning_rate": 1e-5}},
        {"cluster": {"listen_port": 5000, "launcher": "torchrun"}},
        {"algorithm": {"grpo": {"clip_low": 0.1}}, "trainer": {"num_minibatches": 2}},
        {"algorithm": {"name": "dapo", "dapo": {"overlong_limit": 90, "overlong_margin": 9}}},
        {"sft": {"batch": 8, "steps": 3}},
        {"trainer": {"lora": {"rank": 8, "alpha": 8}}},
        {"trainer": {"lora": {"rank": 8}, "learning_rate": 1e-4}},
        {"rollout": {"wait_s": 5}},
        {"eval": {"before": False, "every": 5, "after": False, "samples": 4}},
        {"env": {"maze": {"size": 3}}},
        {"fields": {"question": "q"}, "mixture": [{"tasks": "a.jsonl"}, {"tasks": "a_dataset"}]},
        {
            "fields": {"question": "q"},
            "eval_tasks": "b.jsonl",
            "mixture": [{"tasks": "a.jsonl", "fields": {"id": "nr"}}],
        },
        {"engine": {"name": "http://127.0.0.1:1", "sglang": {"transport": "disk"}}},
        {"agent": {"name": "mine.py", "style": "terse"}},
    ],
)
def test_a_setting_that_matters_is_not_complained_about(values: dict[str, object]) -> None:
    assert idle(parse_config(values)) == []
