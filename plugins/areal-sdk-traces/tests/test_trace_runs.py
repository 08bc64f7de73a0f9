"""Run directories of what other tools recorded; and archives of Inspect."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from trace_exports import EXPORTS, chat

from areal_sdk import ConfigError, Run
from areal_sdk_traces.archives import ZSTANDARD, ArchiveError, read_archive
from areal_sdk_traces.as_run import write_run
from areal_sdk_traces.readers import FORMATS

HEADER = {"version": 2, "status": "success", "eval": {"eval_id": "e", "task": "sums"}}


def sample(number: int, epoch: int, score: str) -> dict[str, Any]:
    (log,) = EXPORTS["inspect"](number)
    one: dict[str, Any] = log["samples"][0]
    return {**one, "id": f"s-{number}", "epoch": epoch, "scores": {"match": {"value": score}}}


def write_archive(path: Path, *, pack: Any = None) -> Path:
    """A log as Inspect's archives have it; `pack` compresses each file, marked as Zstandard."""
    files = {"header.json": json.dumps(HEADER)}
    for number, epoch, score in ((1, 1, "C"), (1, 2, "I"), (2, 1, "C")):
        files[f"samples/s-{number}_epoch_{epoch}.json"] = json.dumps(sample(number, epoch, score))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, pack(text.encode()) if pack else text)
        places = [info.header_offset for info in archive.infolist()]
    if pack:  # zipfile writes no such archives before Python 3.14
        raw = bytearray(path.read_bytes())
        for place in places:
            struct.pack_into("<H", raw, place + 8, ZSTANDARD)
        at = raw.find(b"PK\x01\x02")
        while at >= 0:
            struct.pack_into("<H", raw, at + 10, ZSTANDARD)
            at = raw.find(b"PK\x01\x02", at + 4)
        path.write_bytes(raw)
    return path


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_recognised_and_becomes_a_run(format: str, tmp_path: Path) -> None:
    source = tmp_path / "export.jsonl"
    num = 1 if format == "codex" else 3  # a file of its is a session
    source.write_text("\n".join(json.dumps(row) for n in range(num) for row in EXPORTS[format](n)))
    said: list[str] = []
    run = Run(write_run(source, tmp_path / "runs", say=said.append))
    rows = run.episodes()
    assert not said
    assert len(rows) == num
    for n, row in enumerate(rows):
        turns = run.episode(row["id"]).turns
        answers = [turn.message.get("content") or "" for turn in turns]
        wanted = [m["content"] or "" for m in chat(n) if m["role"] == "assistant"]
        assert answers == wanted
        (last,) = turns[-1].new_messages[-1:]
        assert (last["role"], last["content"]) == ("tool", str(n + 1))


def test_an_archive_becomes_a_run_whose_epochs_are_attempts_at_a_task(tmp_path: Path) -> None:
    source = write_archive(tmp_path / "log.eval")
    run = Run(write_run(source, tmp_path / "runs", say=print))
    assert run.settings["agent"] == "sums"
    rows = [(row["task_id"], row["group"], row["reward"]) for row in run.episodes()]
    assert rows == [("s-1", "s-1", 1.0), ("s-1", "s-1", 0.0), ("s-2", "s-2", 1.0)]


def refuse(fault: ArchiveError) -> None:
    raise fault


def test_an_archive_of_zstandard_is_the_same_log(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = write_archive(tmp_path / "packed.eval", pack=zstandard.ZstdCompressor().compress)
    plain = write_archive(tmp_path / "plain.eval")
    assert read_archive(packed, refuse) == read_archive(plain, refuse)
    raw = packed.read_bytes()
    packed.write_bytes(raw.replace(b"\x28\xb5\x2f\xfd", b"\x00\x00\x00\x00"))
    with pytest.raises(ArchiveError, match=r"header\.json is damaged"):
        read_archive(packed, refuse)


def test_a_file_without_conversations_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name, text, why in (
        ("a.eval", "no archive", "an archive of Inspect: it is damaged"),
        ("b.json", '{"eval": {}, "samples": []}', "no conversation in"),
        ("c.jsonl", "", "no conversation in"),
    ):
        source = tmp_path / name
        source.write_text(text)
        with pytest.raises(ConfigError, match=why):
            write_run(source, tmp_path / "runs", say=print)


def test_a_row_that_is_no_episode_is_told(tmp_path: Path) -> None:
    source = tmp_path / "log.json"
    failed = {"id": "f", "epoch": 1, "messages": [], "error": {"message": "Timeout"}}
    source.write_text(json.dumps({**HEADER, "samples": [sample(1, 1, "C"), failed]}))
    said: list[str] = []
    write_run(source, tmp_path / "runs", say=said.append)
    assert len(said) == 1
    assert "no messages: Timeout" in said[0]
