"""`init --from-areal` writes settings that mean what AReaL's configuration meant, and that a run accepts."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from areal_sdk.cli.init import init
from areal_sdk.cli.main import cli
from areal_sdk.config import load_config
from areal_sdk.errors import ConfigError
from areal_sdk.errors.packages import Package

SAMPLE = Path(__file__).parents[2] / "plugins" / "areal-sdk-from-areal" / "tests" / "gsm8k.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(init, arguments, catch_exceptions=False)


@pytest.fixture
def translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings that the sample of AReaL's YAML became."""
    monkeypatch.chdir(tmp_path)
    run("--from-areal", str(SAMPLE))
    return tmp_path / "gsm8k.toml"


def test_keys_of_the_run_and_its_rollouts_mean_what_they_meant(translated: Path) -> None:
    config = load_config(file=translated)
    run_, rollout = config.run, config.rollout
    assert config.model == "tiny"
    assert (run_.name, run_.seed, str(run_.dir)) == ("sums-first", 7, "experiments")
    assert (rollout.epochs, rollout.batch, rollout.group_size) == (3, 64, 4)
    assert (rollout.max_staleness, rollout.max_inflight) == (3, 256)
    assert (rollout.temperature, rollout.max_new_tokens) == (0.9, 512)
    assert rollout.dynamic_sampling
    assert config.eval.every == 10


def test_keys_of_the_actor_mean_what_they_meant(translated: Path) -> None:
    trainer = load_config(file=translated).trainer
    assert (trainer.learning_rate, trainer.weight_decay, trainer.max_grad_norm) == (2e-5, 0.02, 0.5)
    assert (trainer.num_minibatches, trainer.tokens_per_microbatch, trainer.ranks) == (2, 8192, 2)
    assert (trainer.activation_checkpointing, trainer.schedule) == ("full", "constant")


def test_keys_of_the_engine_mean_what_they_meant(translated: Path) -> None:
    engine = load_config(file=translated).engine
    raw = tomllib.loads(translated.read_text())
    assert (engine.name, engine.max_context) == ("sglang", 4096)
    assert raw["engine"]["sglang"] == {"servers": 2, "tp_size": 1, "memory_fraction": 0.8}


def test_keys_of_the_algorithm_mean_what_they_meant(translated: Path) -> None:
    raw = tomllib.loads(translated.read_text())
    assert raw["algorithm"] == {
        "name": "areal",
        "areal": {
            "group_norm": True,
            "clip_low": 0.3,
            "clip_high": 0.35,
            "dual_clip": 3.0,
            "max_weight": 4.0,
            "weight_level": "token",
            "beyond": "mask",
            "proximal": "recompute",
            "reward_scale": 8.0,
            "reward_bias": -0.25,
            "reward_clip": 20.0,
            "overlong_limit": 512,
            "overlong_margin": 128,
            "overlong_penalty": 0.5,
        },
    }


def test_what_is_not_supported_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = run("--from-areal", str(SAMPLE)).output
    _, _, refused = output.partition("not supported (")
    assert "saver.freq_epochs = 1: areal-sdk counts steps: set run.checkpoint_every" in refused
    assert 'sglang.attention_backend = "fa3": engine.sglang.arguments takes' in refused
    assert "actor.reward_clip = 20.0, AReaL's default -> algorithm.areal.reward_clip" in output


def test_train_accepts_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("--from-areal", str(SAMPLE))
    run("agent", "adder")
    result = CliRunner().invoke(
        cli,
        ["train", "adder.py", "--config", "gsm8k.toml", "--engine", "local", "--dry-run"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    assert "ok: settings, plugins, model, agent and tasks were found" in result.output


def test_nothing_is_overwritten_and_the_name_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k.toml").write_text("precious")
    with pytest.raises(ConfigError, match=r"gsm8k.toml exists: choose another name \(--output\)"):
        run("--from-areal", str(SAMPLE))
    assert (tmp_path / "gsm8k.toml").read_text() == "precious"
    assert run("--from-areal", str(SAMPLE), "--output", "other.toml").exit_code == 0
    assert (tmp_path / "other.toml").exists()


def test_init_alone_shows_its_help_and_options_without_a_file_are_refused() -> None:
    assert "--from-areal" in run().output
    assert run("--output", "x.toml").exit_code == 2
    assert run("--from-areal", "x.yaml", "agent", "name").exit_code == 2


def test_without_its_package_the_option_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Package, "is_installed", False)
    line = r"pip install \S+/plugins/areal-sdk-sglang \S+/plugins/areal-sdk-from-areal"
    with pytest.raises(ConfigError, match=line):
        run("--from-areal", str(SAMPLE))
