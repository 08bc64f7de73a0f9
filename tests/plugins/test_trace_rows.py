"""Rows that `areal-sdk traces` writes are rows that `areal-sdk sft` and `areal-sdk dpo` read."""

import json
from pathlib import Path

from click.testing import CliRunner

from areal_sdk.cli.main import cli
from areal_sdk.loop.plan.rows import read_conversations, read_pairs

QUESTION = {"role": "user", "content": "2 + 2?"}
ROWS = [
    {"messages": [QUESTION, {"role": "assistant", "content": "4"}]},
    {
        "input": {"messages": [{"role": "user", "content": "3 + 3?"}]},
        "preferred_output": [{"role": "assistant", "content": "6"}],
        "non_preferred_output": [{"role": "assistant", "content": "7"}],
    },
]


def written(directory: Path, kind: str) -> Path:
    source, output = directory / "rows.jsonl", directory / f"{kind}.jsonl"
    source.write_text("\n".join(map(json.dumps, ROWS)))
    words = ["traces", "import", str(source), "--from", "openai", "--as", kind]
    ended = CliRunner().invoke(cli, [*words, "--output", str(output)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return output


def test_what_traces_writes_sft_and_dpo_read(tmp_path: Path) -> None:
    conversations = read_conversations(written(tmp_path, "sft"))
    assert next(iter(conversations)).messages[-1]["content"] == "4"
    (pair,) = read_pairs(written(tmp_path, "dpo"))
    assert (pair.chosen[-1]["content"], pair.rejected[-1]["content"]) == ("6", "7")
