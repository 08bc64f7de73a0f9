"""Memory of a step is what the formulas say: within 15 % of measured peaks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from areal_sdk.cli.doctor import doctor
from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.memory.predicted import largest_context, predict
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.shapes import SHAPES, ModelShape
from areal_sdk.trainer import Demonstration
from tests.fsdp.specs import trainer_spec
from tests.toolbox.families import saved
from tests.toolbox.measured_memory import measure_bytes

SIZE = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 2000,
    "max_position_embeddings": 8192,
}
TIED = {"tie_word_embeddings": True}
MIXTURE = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
    "shared_expert_intermediate_size": 320,
}
LARGE = {"vocab_size": 32000}
DEEP = {"num_hidden_layers": 12, "sliding_window": None}
FULL: dict[str, Any] = {"activation_checkpointing": "full"}
EXACT: dict[str, Any] = {"precision": "float32"}
ADAPTER: dict[str, Any] = {"lora": {"rank": 8}}

FAST = [
    pytest.param("qwen3", {}, EXACT, 256, id="qwen3, float32"),
    pytest.param("llama", TIED, FULL, 256, id="llama, tied, recomputed"),
    pytest.param("qwen3_moe", MIXTURE, EXACT, 256, id="qwen3_moe, float32"),
]
SLOW = [
    ("qwen3", {}, {}, 512),
    ("qwen3", {}, {}, 64),
    ("llama", TIED, {}, 1024),
    ("qwen2", {}, FULL, 1024),
    ("qwen3", {}, EXACT | {"activation_checkpointing": "half"}, 512),
    ("llama", LARGE, {}, 512),
    ("llama", LARGE, {"head_precision": "float32"}, 512),
    ("qwen3", {}, ADAPTER, 512),
    ("llama", TIED, EXACT | ADAPTER, 512),
    ("mistral", DEEP, FULL, 2048),
    ("qwen3", {"num_hidden_layers": 2}, EXACT | FULL, 2048),
    ("qwen3_moe", MIXTURE, {}, 512),
    ("qwen3_moe", MIXTURE, FULL, 1024),
    ("qwen3_moe", MIXTURE, ADAPTER, 512),
    ("qwen2_moe", MIXTURE, {}, 1024),
    ("qwen2_moe", MIXTURE, EXACT | FULL, 512),
]


@pytest.mark.parametrize(
    ("family", "fields", "settings", "num_tokens"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_peak_of_a_step_is_predicted(
    family: str,
    fields: dict[str, Any],
    settings: dict[str, Any],
    num_tokens: int,
    tmp_path: Path,
) -> None:
    """The peak of the step alone is predicted too: most of the rest are weights and moments, which
    nobody can get wrong."""
    directory = saved(tmp_path, family, **{**SIZE, **fields})
    model = ModelShape.of(json.loads((directory / "config.json").read_text()))
    spec = trainer_spec(directory, device="cpu", tokens_per_microbatch=num_tokens, **settings)
    trainer = RankTrainer(spec)
    draw = np.random.default_rng(0).integers
    mask = (False,) + (True,) * num_tokens
    rows = [Demonstration(tuple(draw(3, 2000, len(mask)).tolist()), mask) for _ in range(2)]
    trainer.learn(rows, learning_rate=1e-4)  # the optimiser has its moments
    measured = measure_bytes(lambda: trainer.learn(rows, learning_rate=1e-4))
    predicted = predict(model, spec.trainer, num_tokens=num_tokens, stored="float32")
    moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
    lasting = sum(t.numel() * t.element_size() for t in [*trainer.policy.parameters(), *moments])
    assert predicted.lasting == pytest.approx(lasting, rel=0.01)
    assert predicted.step == pytest.approx(measured.peak, rel=0.15)


def test_the_longest_context_fits_and_one_more_token_does_not() -> None:
    settings = TrainerSection(ranks=8)
    for memory in (60_000_000_000, 72_000_000_000):
        longest = largest_context(SHAPES["7B"], settings, memory=memory)
        totals = [
            predict(SHAPES["7B"], settings, num_tokens=longest + more).total for more in (0, 1)
        ]
        assert totals[0] <= memory < totals[1]
    assert largest_context(SHAPES["70B"], settings, memory=72_000_000_000) == 0


def test_the_command_says_what_does_not_fit_and_what_helps() -> None:
    command = ["train", "--model", "7B", "--gpus", "8", "--context", "65536"]
    found = CliRunner().invoke(doctor, command)
    assert found.exit_code == 1
    assert 'activation_checkpointing = "full"' in found.output
    assert "with --set trainer.defer_gradient_sync=false: " in found.output
    own = [*command, "--set", "trainer.activation_checkpointing=none"]
    assert (
        "with --set trainer.activation_checkpointing=full: "
        in CliRunner().invoke(doctor, own).output
    )
    numbers = json.loads(CliRunner().invoke(doctor, [*command[:-1], "1024", "--json"]).output)
    parts = ("parameters", "moments", "gradients", "gathered", "activations", "logits")
    assert numbers["total"] == sum(numbers[part] for part in parts) < numbers["usable"]


def test_the_table_of_the_page_is_what_is_predicted() -> None:
    page = (Path(__file__).parents[3] / "docs" / "trainer.md").read_text()
    table = page.partition("| shape |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    expected = [
        [name, str(gpus), *predicted_cells(SHAPES[name], gpus)]
        for name in SHAPES
        for gpus in (8, 16, 32, 64)
    ]
    assert listed == expected


def predicted_cells(shape: ModelShape, gpus: int) -> list[str]:
    """Lasting GB, a step's GB at 8,192 tokens, and longest contexts, at 80 GB of which 8 are left free."""
    ways: list[dict[str, Any]] = [
        FULL,
        FULL | {"defer_gradient_sync": False},
        FULL | {"lora": {"rank": 16}},
    ]
    sections = [TrainerSection(ranks=gpus, **way) for way in ways]
    found = predict(shape, sections[1], num_tokens=8192)
    longest = [largest_context(shape, section, memory=72_000_000_000) for section in sections]
    cells = [f"{found.lasting / 1e9:.1f}", f"{found.step / 1e9:.1f}"]
    return cells + [f"{n // 1024}k" if n >= 1024 else "-" for n in longest]
