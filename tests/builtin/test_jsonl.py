"""Task files are read lazily, and a bad line is named by its number."""

from pathlib import Path

import pytest

from areal_sdk import ConfigError, Task
from areal_sdk.builtin.jsonl import read_tasks


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
    with pytest.raises(ConfigError, match="is a directory"):
        list(read_tasks(tmp_path))
