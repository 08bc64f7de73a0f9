"""`areal-sdk export`: a directory for others, with the figures of its run."""

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_sdk.cli.main import cli
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.loop.export import Choice, choose, write_export
from areal_sdk.loop.export.card import Exported, model_card
from areal_sdk.models import make_tiny_model
from areal_sdk.models.checkpoint import copy_all_but_weights
from areal_sdk.telemetry import MetricsLog, RunDir
from areal_sdk.types import Tool
from tests.gateway.model_dirs import CHATML

from .conftest import make_run

TOOL: Tool = {"type": "function", "function": {"name": "spell", "description": "Spell it."}}


def weights_in(directory: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = load_file(directory / "model.safetensors")
    return weights


def test_the_best_weights_load_in_transformers_as_they_were_evaluated(
    run: RunDir, tmp_path: Path
) -> None:
    exported = write_export(choose(run), tmp_path / "vowels")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "vowels")
    assert model.dtype is torch.bfloat16, "the run sampled in it, and its model is in float32"
    measured = weights_in(run.checkpoints / "best")
    for name, tensor in weights_in(tmp_path / "vowels").items():
        assert torch.equal(tensor, measured[name]), name
    assert exported.is_rounded, "the trainer's weights are float32"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "vowels")
    assert tokenizer.chat_template
    assert tokenizer.decode(tokenizer("vowels")["input_ids"]) == "vowels"


@pytest.fixture(scope="module")
def small_steps(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose model is stored in bfloat16 and sampled in float32, as on a CPU without bfloat16."""
    root = tmp_path_factory.mktemp("small-steps")
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(root / "tiny"))
    model.bfloat16().save_pretrained(root / "bf16")
    (root / "tiny" / "config.json").unlink()
    (root / "tiny" / "chat_template.jinja").write_text(CHATML)
    copy_all_but_weights(root / "tiny", root / "bf16")
    return make_run(root, root / "bf16", sampled="float32", learning_rate=1e-6)


def test_small_steps_on_a_model_in_bfloat16_are_exported_whole(
    small_steps: RunDir, tmp_path: Path
) -> None:
    result = CliRunner().invoke(
        cli, ["export", str(small_steps.path), "--last", "--to", str(tmp_path / "whole")]
    )
    assert result.exit_code == 0, result.output
    assert "the last, after step 2, float32\n" in result.output
    trained = weights_in(small_steps.checkpoints / "final")
    for name, tensor in weights_in(tmp_path / "whole").items():
        assert torch.equal(tensor, trained[name]), name
    asked = [{"role": "user", "content": "abc"}]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    trained_on = Renderer.load(small_steps.model).text(TemplateInput(tuple(asked), (TOOL,)))
    assert "spell(): Spell it." in trained_on
    assert trained_on == tokenizer.apply_chat_template(
        asked, tools=[TOOL], tokenize=False, add_generation_prompt=True
    )
    advice = "Keep the weights in float32: in bfloat16 9"
    assert advice in (tmp_path / "whole" / "README.md").read_text()


@pytest.mark.parametrize(
    "step",
    [None, pytest.param(2, marks=pytest.mark.slow)],  # a process of its own reads a checkpoint
)
def test_the_part_of_an_update_that_is_rounded_away_is_told(
    small_steps: RunDir, tmp_path: Path, step: int | None
) -> None:
    choice = choose(small_steps, None if step else "last", step=step)
    exported = write_export(choice, tmp_path / "rounded", dtype="bfloat16")
    first, rounded = (
        weights_in(path) for path in (small_steps.path.parent / "bf16", tmp_path / "rounded")
    )
    trained = weights_in(small_steps.checkpoints / "final")
    changed = {name: trained[name] != first[name].float() for name in trained}
    kept = sum(int((changed[n] & (rounded[n] != first[n])).sum()) for n in trained)
    assert exported.rounding is not None
    assert exported.is_rounded
    share = kept / sum(int(each.sum()) for each in changed.values())
    assert exported.rounding.seen == pytest.approx(share, abs=0.02)
    assert share < 0.1
    assert 0.9 < exported.rounding.error <= 1.0, "no weight is further off than its update"
    card = (tmp_path / "rounded" / "README.md").read_text()
    assert f"| lost by rounding | {exported.rounding} |" in card
    assert "Keep the weights in float32" not in card


def test_the_card_has_the_figures_of_the_run_and_no_path_of_this_machine(
    run: RunDir, tmp_path: Path
) -> None:
    write_export(choose(run), tmp_path / "vowels")
    card = (tmp_path / "vowels" / "README.md").read_text()
    tokens = int(run.read_steps()[0]["train/num_trained"])
    assert tokens > 0
    for row in (
        "| base model | tiny-model |",
        "| algorithm | grpo |",
        "| agent | vowels.py |",
        "| tasks | tasks.jsonl |",
        "| rewards | exact |",
        "| weights | the best of the evaluations, after step 1, bfloat16 |",
        "| steps | 1 |",
        "| episodes trained | 16 |",
        f"| tokens trained | {tokens:,} |",
        "| eval | 8 | 0.250 [0.150, 0.350] | 0.700 [0.600, 0.800] | - | - |",
    ):
        assert row in card
    assert "library_name: transformers" in card
    assert "base_model:" not in card, "the model is on no hub"
    assert "/home/someone" not in card
    assert str(run.path.parent) not in card


def test_the_card_of_a_run_without_a_gradient_sells_no_trained_model(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "idle")
    trainer = {"learning_rate": "auto"}
    run.write_config({"model": "tiny", "trainer": trainer, "algorithm": {"name": "grpo"}})
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    log = MetricsLog(run.metrics)
    for step in (1, 2):
        log.log("step", {"step": step, "ledger": {"trained": 16 * step}})
    final = run.checkpoints / "final"
    card = model_card(Choice(run, final, 2), Exported("float32"), title="idle")
    assert "unchanged by training with areal-sdk, since none of its 2 steps had a gradient" in card
    assert "| steps | 2, none with a gradient |" in card
    assert "episodes trained" not in card
    assert "learning rate" not in card, "none was used"
    updated = {"train/num_updates": 1.0, "train/learning_rate": 4.2e-5}
    log.log("step", {"step": 3, "ledger": {"trained": 48}, **updated})
    log.close()
    card = model_card(Choice(run, final, 3), Exported("float32"), title="busy")
    assert "tiny, trained with areal-sdk." in card
    assert "| episodes trained | 48 |" in card
    assert "| learning rate | auto, 4.2e-05 at first and 4.2e-05 at last |" in card


def test_the_card_of_weights_before_training_says_so(run: RunDir) -> None:
    weights = run.checkpoints / "best"
    card = model_card(Choice(run, weights, 0), Exported("float32"), title="first")
    assert "trained with areal-sdk" not in card
    assert "tiny-model, as it was before training with areal-sdk" in card
    card = model_card(Choice(run, weights, 1), Exported("float32"), title="next")
    assert "tiny-model, trained with areal-sdk." in card


def test_the_card_says_what_was_trained_before_the_run(run: RunDir, tmp_path: Path) -> None:
    later = RunDir.create(tmp_path, "later")
    later.write_config({"init_from": str(run.path), "algorithm": {"name": "dapo"}})
    later.model.symlink_to(run.model)
    weights = later.checkpoints / "final"
    weights.parent.mkdir(exist_ok=True)
    weights.symlink_to(run.checkpoints / "final")
    card = model_card(Choice(later, weights, 0), Exported("float32"), title="later")
    assert "| base model | tiny-model |" in card
    assert "| trained before | grpo, 2 steps |" in card


@pytest.mark.slow  # a process of its own reads it
def test_a_checkpoint_is_exported_with_the_float32_weights_of_its_optimiser(
    run: RunDir, tmp_path: Path
) -> None:
    write_export(choose(run, step=2), tmp_path / "float32", dtype="float32")
    sampled = weights_in(run.checkpoints / "final")
    exact = weights_in(tmp_path / "float32")
    assert any(not torch.equal(tensor, sampled[name].float()) for name, tensor in exact.items())
    assert all(torch.equal(tensor.bfloat16(), sampled[name]) for name, tensor in exact.items())
    assert not (run.checkpoints / "step-000002" / "export").exists(), "nothing is left in the run"
    assert [path.name for path in tmp_path.iterdir()] == ["float32"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_what_torch_makes_of_the_weights(
    run: RunDir, tmp_path: Path, dtype: str
) -> None:
    write_export(choose(run, "last"), tmp_path / "model", dtype=dtype)
    kept = weights_in(run.checkpoints / "final")
    for name, tensor in weights_in(tmp_path / "model").items():
        assert torch.equal(tensor, kept[name].to(getattr(torch, dtype))), name
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").dtype is getattr(torch, dtype)


def test_what_float16_cannot_hold_is_an_error_or_told(small_steps: RunDir, tmp_path: Path) -> None:
    shutil.copytree(small_steps.path, tmp_path / "run")
    kept = choose(RunDir(tmp_path / "run"), "last")
    path, name = kept.weights / "model.safetensors", "model.norm.weight"
    weights = load_file(path)
    weights[name][:2] = torch.tensor([1e-9, 1.0])
    save_file(weights, path, metadata={"format": "pt"})
    exported = write_export(kept, tmp_path / "small", dtype="float16")
    assert weights_in(tmp_path / "small")[name][0] == 0.0
    assert exported.num_vanished >= 1
    card = (tmp_path / "small" / "README.md").read_text()
    assert f"| too small for the dtype | {exported.num_vanished:,}" in card
    weights[name][1] = 1e5
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model.norm.weight has a weight of 100000.*bfloat16"):
        write_export(kept, tmp_path / "large", dtype="float16")
    assert not (tmp_path / "large").exists()


def test_weights_kept_in_bfloat16_are_not_said_to_be_rounded_by_another_dtype_alone(
    run: RunDir, tmp_path: Path
) -> None:
    exported = write_export(choose(run), tmp_path / "model", dtype="float16")
    assert str(exported.rounding).startswith("in bfloat16, as the run kept them, and then float16 ")


def test_weights_that_the_run_does_not_have_are_named_with_the_cure(
    run: RunDir, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7; there: 1, 2 .*keep_checkpoin"):
        choose(run, step=7)
    empty = RunDir.create(tmp_path, "empty")
    empty.write_config({"agent": "a.py"})
    with pytest.raises(ConfigError, match=r"has no weights yet.*--resume"):
        choose(empty)
    with pytest.raises(ConfigError, match=r"no best weights: .*--last"):
        choose(empty, "best")
    with pytest.raises(ConfigError, match="has no adapter: leave --adapter out"):
        write_export(choose(run), tmp_path / "adapter", adapter=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{run}"], "say where: --to DIR"),
        (["{run}", "--to", "{here}"], "is not empty: choose another directory"),
        (["{run}", "--to", "x", "--best", "--step", "1"], "--step and --best are two choices"),
        (["{run}", "--to", "x", "--private"], "--private is an option of --push"),
        (["{run}/checkpoints", "--to", "x"], "is not a run directory"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_written(
    run: RunDir, tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "kept").touch()
    words = [word.format(run=run.path, here=tmp_path) for word in arguments]
    result = CliRunner().invoke(cli, ["export", *words])
    assert result.exit_code
    assert told in (result.output + str(result.exception))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # by PeftModel
def test_an_adapter_is_exported_merged_or_alone(tmp_path: Path) -> None:
    from peft import PeftModel

    base = make_tiny_model(tmp_path / "base")
    run = make_run(tmp_path, base, lora_rank=4)
    write_export(choose(run), tmp_path / "merged", dtype="bfloat16")
    assert not (tmp_path / "merged" / "adapter").exists()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    write_export(choose(run), tmp_path / "adapter", adapter=True)
    assert not (tmp_path / "adapter" / "config.json").exists()
    alone = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    ).merge_and_unload()
    for name, tensor in merged.state_dict().items():
        assert torch.equal(tensor, alone.state_dict()[name].bfloat16().float()), name
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "library_name: peft" in card
    assert "grpo, LoRA of rank 4 |" in card
    assert "LoRA of rank 4, merged" in (tmp_path / "merged" / "README.md").read_text()
    assert str(tmp_path) not in (tmp_path / "adapter" / "adapter_config.json").read_text()
