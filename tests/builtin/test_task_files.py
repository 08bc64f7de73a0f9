"""Task files of every format make the same tasks, and a bad row is named by its number."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from areal_sdk import ConfigError, Task
from areal_sdk.builtin.hub import is_hub_id
from areal_sdk.builtin.tasks import read_tasks
from areal_sdk.telemetry.episode_index import task_key
from tests.builtin import hub_server
from tests.builtin.saved_dataset import saved


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_fields_or_data_make_a_task(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"id": "a", "data": {"question": "1+1?"}}',
        "",
        '{"id": 7, "prompt": "hi"}',
        '{"messages": []}',
    )
    assert list(read_tasks(path)) == [
        Task("a", {"question": "1+1?"}),
        Task("7", {"prompt": "hi"}),
        Task("tasks-4", {"messages": []}),
    ]


def test_a_row_keeps_its_key_where_the_file_is_reordered_or_serves_as_another_split(
    tmp_path: Path,
) -> None:
    rows = ['{"question": "1+1?", "answer": 2}', '{"question": "2+2?", "answer": 4}']
    train = [*read_tasks(write(tmp_path, *rows))]
    held_out = tmp_path / "eval.json"
    held_out.write_text(f"[{rows[1]}, {rows[0]}]")
    other = [*read_tasks(held_out, split="eval")]
    assert {task.id for task in train}.isdisjoint(task.id for task in other)
    assert [task_key(task) for task in train] == [task_key(task) for task in other][::-1]


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "hi"}\r\n')
    assert [t.data for t in read_tasks(path)] == [{"prompt": "hi"}]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (['{"a": 1}', '{"a": '], r"line 2: not valid JSON"),
        (["[1]"], r"line 1: a task is a JSON object, not list"),
        (['{"id": "a"}', '{"id": "a"}'], r"line 2: the id 'a' was used on line 1"),
        (['{"id": null}'], r"line 1: id = None: an id is a string"),
        (['{"data": 3}'], r"line 1: data is an object, not int"),
        (['{"data": {}, "x": 1}'], r"line 1: x beside data: put all fields into data"),
        ([""], r"holds no tasks"),
    ],
)
def test_bad_data_is_one_line_that_says_where(tmp_path: Path, lines: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        list(read_tasks(write(tmp_path, *lines)))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file of tasks: .*gone\.jsonl"):
        list(read_tasks(tmp_path / "gone.jsonl"))
    with pytest.raises(
        ConfigError, match=r"cannot be read: .*: give a file, a directory, or the id"
    ):
        list(read_tasks(tmp_path))


ROWS = [
    {"problem": 'How many "r"s,\nin strawberry?', "solution": "3"},
    {"problem": "1+1?", "solution": "2"},
]
TASKS = [{"question": row["problem"], "answer": row["solution"]} for row in ROWS]
FIELDS = {"question": "problem", "answer": "solution"}


def written(tmp_path: Path, suffix: str) -> Path:
    path = tmp_path / f"tasks{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS, indent=2))
    elif suffix == ".csv":
        path.write_text(
            '\ufeffproblem,solution\r\n"How many ""r""s,\nin strawberry?",3\r\n1+1?,2\r\n'
        )
    elif suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        saved(path, ROWS)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ""])
def test_every_format_makes_the_same_tasks(suffix: str, tmp_path: Path) -> None:
    found = list(read_tasks(written(tmp_path, suffix), fields=FIELDS))
    assert [dict(task.data) for task in found] == TASKS
    assert [task.id for task in found] == ["tasks-1", "tasks-2"]


def test_a_saved_dataset_of_several_splits_gives_the_one_that_is_asked_for(tmp_path: Path) -> None:
    saved(tmp_path / "train", ROWS)
    saved(tmp_path / "test", ROWS[1:])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(list(read_tasks(tmp_path, split="train"))) == 2
    assert len(list(read_tasks(tmp_path, split="eval"))) == 1
    with pytest.raises(ConfigError, match="no split 'hard', only train, test"):
        list(read_tasks(tmp_path, split="hard"))


BAD_FILES = {
    "a missing field": (
        "t.csv",
        "a,b\n1,2\n",
        r"row 1 \(line 2\): no 'problem' \(fields.question\); the row has: a, b",
    ),
    "too many values": (
        "t.csv",
        "problem,b\n1,2\n1,2,3\n",
        r"row 2 \(line 3\): 3 values for 2 columns",
    ),
    "too few values": ("t.csv", "problem,b\n1\n", r"row 1 \(line 2\): 1 values for 2 columns"),
    "an open quote": ("t.csv", 'problem\n"a', "not valid CSV: unexpected end of data"),
    "a column twice": ("t.csv", "problem,problem\n1,2", "a column needs a name of its own"),
    "semicolons": ("t.csv", "problem;b\n1;2\n", "separated by ';'.*save it with commas"),
    "Latin-1": ("t.csv", "problem\n\udcfc\n", "is not UTF-8 .*save the file as UTF-8"),
    "no Parquet": ("t.parquet", "PAR", "not valid Parquet"),
    "a list of texts": (
        "t.json",
        '[{"problem": 1}, "b"]',
        "item 2: a task is a JSON object, not str",
    ),
    "a spreadsheet": ("t.xlsx", "", "convert it"),
}


@pytest.mark.parametrize(("name", "text", "error"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_named_with_its_row(name: str, text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=error):
        list(read_tasks(tmp_path / name, fields={"question": "problem"}))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_directory_of_files_that_are_named_after_their_splits_is_read(tmp_path: Path) -> None:
    for name, rows in (("train", ROWS), ("validation", ROWS[1:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, wanted in (("train", TASKS), ("eval", TASKS[1:])):
        found = list(read_tasks(tmp_path, split=split, fields=FIELDS))
        assert [task.data for task in found] == wanted
    with pytest.raises(ConfigError, match=r"row 1: no 'query' \(fields.question\); the row has"):
        list(read_tasks(tmp_path, fields={"question": "query"}))
    with pytest.raises(ConfigError, match="has no split 'other', only train, validation"):
        list(read_tasks(tmp_path, split="other"))


def test_a_dataset_that_the_hub_does_not_give_is_an_error_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for source in ("no-such/set", "no-such/set:main", "no-such/set@v1"):
        with pytest.raises(ConfigError, match=r"cannot be read: .*HF_ENDPOINT names another hub"):
            next(read_tasks(source))


def test_an_id_of_a_hub_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_text('{"question": "here?"}\n')
    monkeypatch.chdir(tmp_path)
    assert [task.data for task in read_tasks("org/name")] == [{"question": "here?"}]
    for source in ("org/gone.jsonl/x", "/org/name", "./org/other", "name", "org/name:a:b"):
        assert not is_hub_id(source)


STREAM = """
from itertools import islice
from areal_sdk.builtin.tasks import read_tasks
from tests.builtin import hub_server
for source in ("org/sums", "org/sums:main", "org/sums:main@main"):
    found = list(read_tasks(source, fields={"question": "problem"}))
    print(len(found), found[0].id, found[-1].data)
for source, split in (("org/gone", "train"), ("org/sums:other", "train"), ("org/sums", "eval")):
    try:
        list(read_tasks(source, split=split))
    except Exception as exc:
        print(type(exc).__name__, exc)
"""


def test_a_dataset_of_a_hub_is_streamed(tmp_path: Path) -> None:
    """A process of its own streams: `datasets` reads the address of the hub when it is imported."""
    with hub_server.serving() as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
        words = [sys.executable, "-c", STREAM]
        lines = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    said = lines.stdout.splitlines()
    whole = "50 sums-1 {'solution': '50', 'question': '49+1?'}"
    assert said[:3] == [whole] * 3, lines.stderr
    assert "the dataset 'org/gone' cannot be read: " in said[3]
    assert "ConfigError the dataset 'org/sums:other' cannot be read: " in said[4]
    assert "'other' not found" in said[4]
    assert "org/sums has no split 'eval', only train" in said[5]
