"""Ten exports of each format with damage among them: every damaged row is named, and no conversation is lost."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from trace_exports import DAMAGE, EXPORTS, NUM, chat

from areal_sdk import Episode, Task
from areal_sdk.testing import RecordedRun, assistant, make_episode
from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.choice import Choice, chosen
from areal_sdk_traces.command import traces
from areal_sdk_traces.conversation import Conversation, meaning
from areal_sdk_traces.masking import load_mask, masked
from areal_sdk_traces.readers import FORMATS, reader_of
from areal_sdk_traces.rows import read_rows
from areal_sdk_traces.writers import writer_of


def read(format: str, source: Path) -> tuple[list[Conversation], Book]:
    book = Book()
    rows = read_rows(str(source), book, stdin=io.BytesIO())
    kept = chosen(reader_of(format)(rows, book), book, choice=Choice(), mask=None)
    found = [*kept]
    book.close()
    return found, book


def write_exports(format: str, directory: Path) -> set[str]:
    """Ten files of one conversation each, with a damaged row and half a line in turn; the damaged places."""
    damaged = set()
    for n in range(NUM):
        lines = [json.dumps(row) for row in EXPORTS[format](n)]
        file = f"export-{n}.jsonl"
        bad = DAMAGE[format][n] if n < len(DAMAGE[format]) else None
        # Half of a line, as a process that was killed leaves it.
        lines.append(
            json.dumps(bad) if n < len(DAMAGE[format]) else lines[-1][: len(lines[-1]) // 2]
        )
        damaged.add(f"{file}:{len(lines)}")
        (directory / file).write_text("\n".join(lines) + "\n")
    return damaged


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_rows_are_named_and_no_conversation_is_lost(format: str, tmp_path: Path) -> None:
    damaged = write_exports(format, tmp_path)
    found, book = read(format, tmp_path)
    skipped = 1 if format == "claude-code" else 0  # its sessions have no system prompt
    wanted = sorted(str([meaning(one) for one in chat(n)[skipped:]]) for n in range(NUM))
    assert sorted(str([meaning(one) for one in c.messages]) for c in found) == wanted
    named = {f"{one.place.file}:{one.place.line}" for one in book.of(Fate.DAMAGED)}
    others = {f"{one.place.file}:{one.place.line}" for one in book.entries}
    assert named <= damaged <= others, book.entries
    assert not book.of(Fate.UNEXPLAINED, Fate.FLAW), book.entries
    assert all(entry.reason for entry in book.entries)


@pytest.mark.parametrize("format", FORMATS)
def test_tool_results_tools_and_ids_of_calls_are_kept(format: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, EXPORTS[format](3))))
    (one,), _ = read(format, tmp_path / "a.jsonl")
    called, result = one.messages[-3:-1]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "call_3"
    assert result["content"] == "4"
    if format not in ("claude-code", "codex"):  # their files have no definitions
        assert [tool["function"]["name"] for tool in one.tools] == ["add"]
    assert one.places
    assert one.format == format


def test_a_repeated_conversation_is_a_duplicate_that_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(EXPORTS["atif"](1)[0]))
    found, book = read("atif", tmp_path)
    assert len(found) == 1
    assert [str(one.place) for one in book.of(Fate.DUPLICATE)] == ["b.jsonl:1"]


@pytest.mark.parametrize("format", ["openai", "atif", "verifiers", "codex"])
def test_a_grown_file_renames_no_conversation_without_an_id(format: str, tmp_path: Path) -> None:
    def nameless(n: int) -> list[Any]:
        if format == "verifiers":
            said = chat(n)
            return [{"prompt": said[:2], "completion": said[2:]}]
        rows = EXPORTS[format](n)
        if format == "atif":
            del rows[0]["session_id"]
        return rows[1:] if format == "codex" else rows

    # Sessions of Codex are files; the calls of other formats are rows.
    def ids(*numbers: int) -> list[str]:
        folder = tmp_path / "-".join(map(str, numbers))
        folder.mkdir()
        for place, number in enumerate(numbers):
            file = folder / (f"{place}.jsonl" if format == "codex" else "all.jsonl")
            with file.open("a") as out:
                out.writelines(json.dumps(row) + "\n" for row in nameless(number))
        return [one.id for one in read(format, folder)[0]]

    one, two = ids(1), ids(2)
    assert one != two
    assert sorted(ids(0, 2, 1)) == sorted(ids(0) + two + one)


def test_a_fork_is_two_conversations_and_its_common_answer_is_taught_once(tmp_path: Path) -> None:
    rows = EXPORTS["langfuse"](2)
    other = {
        **rows[1],
        "id": "o",
        "start_time": "2026-02",
        "output": '{"role":"assistant","content":"3!"}',
    }
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*rows, other])))
    found, book = read("langfuse", tmp_path / "a.jsonl")
    assert [one.link and (one.link.parent, one.link.num_shared) for one in found] == [
        None,
        ("t2", 4),
    ]
    weights = [[m.get("weight") for m in one["messages"]] for one in writer_of("sft")(found, book)]
    assert weights == [[None] * 5, [None, None, 0, None, None]]


def test_parallel_calls_of_claude_code_are_no_fork(tmp_path: Path) -> None:
    def line(kind: str, uuid: str, parent: str | None, content: Any, message_id: str = "") -> str:
        message = {"role": kind, "content": content, "id": message_id}
        row = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s"}
        return json.dumps({**row, "message": message})

    def use(name: str) -> list[Any]:
        return [{"type": "tool_use", "id": name, "name": "look", "input": {}}]

    def result(name: str) -> list[Any]:
        return [{"type": "tool_result", "tool_use_id": name, "content": name}]

    lines = [
        line("user", "1", None, "Look twice."),
        line("assistant", "2", "1", use("a"), "m"),
        line("assistant", "3", "2", use("b"), "m"),
        line("user", "4", "2", result("a")),
        line("user", "5", "3", result("b")),
        line("assistant", "6", "5", [{"type": "text", "text": "Done."}], "n"),
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    (one,), book = read("claude-code", tmp_path / "s.jsonl")
    assert [m["role"] for m in one.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert not book.entries


def test_a_list_that_breaks_off_gives_the_elements_before_the_break(tmp_path: Path) -> None:
    whole = json.dumps([EXPORTS["atif"](n)[0] for n in range(3)], indent=1)
    (tmp_path / "a.json").write_text(whole[: len(whole) * 5 // 6])
    found, book = read("atif", tmp_path / "a.json")
    assert len(found) == 2
    (entry,) = book.of(Fate.DAMAGED)
    assert entry.place.line > 1
    assert "no JSON" in entry.reason


def test_masks_hide_texts_arguments_and_results_and_leave_json_whole(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "Write to ann@example.org"}
    called = assistant(None, ("send", {"to": "ann@example.org", "n": 1}))
    one = Conversation("c", (asked, called))
    mask = load_mask("common")
    assert mask is not None
    hidden, num_changed = masked(one, mask)
    assert "ann@" not in json.dumps(hidden.to_json())
    assert num_changed == 2
    arguments = hidden.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"to": "[email]", "n": 1}
    (tmp_path / "mine.py").write_text("def hide(text):\n    return text.upper()\n")
    mine = load_mask(f"{tmp_path}/mine.py:hide")
    assert mine is not None
    assert mine("a") == "A"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_answer_that_was_cut_off_is_kept_and_not_taught(api: str, tmp_path: Path) -> None:
    asked, half = {"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2"}
    request: dict[str, Any] = {"messages": [asked]}
    response: dict[str, Any] = {"choices": [{"message": half, "finish_reason": "length"}]}
    if api == "responses":
        said = {**half, "type": "message", "content": [{"type": "output_text", "text": "1, 2"}]}
        request, response = {"input": "Count."}, {"status": "incomplete", "output": [said]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"request": request, "response": response}))
    (one,), book = read("openai", tmp_path)
    assert [*one.messages] == [asked, {**half, "weight": 0}]
    assert [entry.reason for entry in book.entries] == ["an answer that was cut off is context"]


def test_a_preference_of_two_answers_is_damaged_and_the_others_are_read(tmp_path: Path) -> None:
    answer = [{"role": "assistant", "content": "4"}]
    row = {
        "input": {"messages": [{"role": "user", "content": "2 + 2?"}]},
        "preferred_output": answer,
        "non_preferred_output": [{"role": "assistant", "content": "5"}],
    }
    longer = {**row, "preferred_output": answer * 2}
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(one) for one in (longer, row)))
    ended = run("import", str(file), "--from", "openai", "--book", str(tmp_path / "book.jsonl"))
    assert len(ended.stdout.splitlines()) == 2
    (entry,) = map(json.loads, (tmp_path / "book.jsonl").read_text().splitlines())
    assert entry["fate"] == "damaged"
    assert entry["reason"] == "preferred_output is no answer of the assistant"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(traces, [*arguments], catch_exceptions=False)


def test_conversations_become_rows_pairs_and_tasks(tmp_path: Path) -> None:
    rows = EXPORTS["verifiers"](1)
    worse = json.loads(json.dumps(rows[0]))
    worse["traces"][0]["id"] = "worse"
    worse["traces"][0]["nodes"][-1]["message"]["content"] = "It is 9."
    worse["traces"][0]["rewards"]["correct"]["score"] = 0.0
    source, output = tmp_path / "traces.jsonl", tmp_path / "rows.jsonl"
    source.write_text("\n".join(map(json.dumps, [*rows, worse])))
    given = (
        "import",
        str(source),
        "--from",
        "verifiers",
        "--output",
        str(output),
        "--score",
        "reward",
    )
    assert run(*given, "--as", "sft").exit_code == 0
    assert len(output.read_text().splitlines()) == 2
    assert run(*given, "--as", "dpo").exit_code == 0
    (pair,) = map(json.loads, output.read_text().splitlines())
    assert pair["chosen"][-1]["content"] == "It is 2."
    assert pair["rejected"][-1]["content"] == "It is 9."
    ended = run(*given, "--as", "tasks", "--book", str(tmp_path / "book.jsonl"))
    (task,) = map(json.loads, output.read_text().splitlines())
    assert task["data"]["answer"] == "It is 2."
    assert "1 rows written" in ended.stderr
    assert "not written: 1" in ended.stderr
    assert "has the same prompt" in (tmp_path / "book.jsonl").read_text()


def test_a_run_gives_conversations_by_user_and_reward(tmp_path: Path) -> None:
    from dataclasses import replace

    from areal_sdk import Outcome

    def episode(name: str, user: str, reward: float, text: str) -> Episode:
        said = make_episode([{"role": "user", "content": "Hi"}, assistant(text)])
        return replace(
            said, id=name, task=Task(user, {"key": "ci"}), outcome=Outcome.scored(reward)
        )

    recorded = RecordedRun(tmp_path / "run")
    recorded.measure(episode("a", "ann", 1.0, "Hello."), split="live")
    recorded.measure(episode("b", "ann", 0.0, "Go away."), split="live")
    recorded.measure(episode("c", "bob", 1.0, "Good day."), split="live")
    recorded.close()
    path = str(tmp_path / "run")
    ended = run(path, "--user", "ann", "--min-score", "0.5")
    (row,) = map(json.loads, ended.stdout.splitlines())
    assert row["id"] == "a"
    assert row["user"] == "ann"
    assert row["tags"] == ["key=ci"]
    assert row["score"] == 1.0
    assert "filtered: 2" in ended.stderr
    (pair,) = map(json.loads, run(path, "--as", "dpo", "--user", "ann").stdout.splitlines())
    assert pair["rejected"][0]["content"] == "Go away."
    assert not run(path, "--where", "reward > 2").stdout
