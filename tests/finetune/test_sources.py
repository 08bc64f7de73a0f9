"""Data of a run: which episodes, which tokens, and what is left out or refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.config import FinetuneSection
from areal_sdk.errors import ConfigError
from areal_sdk.finetune.recorded_episodes import EpisodeChoice, best_episodes, threads
from areal_sdk.finetune.sources import Sources
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.telemetry import RunDir
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Episode, ErrorKind, Exclusion, FinishReason, Outcome
from tests.gateway.model_dirs import make_model_dir

from .recorded_runs import ASKED, run_with, said, sampled, told


def sources(model_dir: Path, **settings: object) -> Sources:
    return Sources(FinetuneSection.model_validate(settings), model_dir, Renderer.load(model_dir))


def written(path: Path, *rows: object) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def test_the_best_episodes_are_those_that_succeeded(tmp_path: Path) -> None:
    run = run_with(
        tmp_path / "run",
        [sampled("2", 1.0), sampled("3", 0.5), sampled("4", None), sampled("1+1=2", 1.0)],
    )
    assert [e.final_text for e in best_episodes(run, EpisodeChoice())] == ["2", "1+1=2"]
    low = EpisodeChoice(min_reward=0.5)
    assert [e.final_text for e in best_episodes(run, low)] == ["2", "3", "1+1=2"]
    assert [e.final_text for e in best_episodes(run, replace(low, per_task=1))] == ["1+1=2"]


@pytest.mark.parametrize("by_policy", [{"white": 1.0, "black": -1.0}, {}])
def test_an_opponent_is_not_imitated_for_the_others_success(
    by_policy: dict[str, float], tmp_path: Path
) -> None:
    (white,) = sampled("2", 1.0).turns
    (black,) = sampled("3", 1.0, excluded=True).turns
    is_frozen = None if by_policy else Exclusion.FROZEN_POLICY
    turns = (replace(white, policy="white"), replace(black, policy="black", excluded=is_frozen))
    outcome = Outcome.scored(1.0, by_policy=by_policy)
    run = run_with(tmp_path / "run", [replace(sampled("2", 1.0), turns=turns, outcome=outcome)])
    (episode,) = best_episodes(run, choice := EpisodeChoice())
    learnt = [one.learnt for one in threads(episode) if choice.admits_policy(one)]
    assert learnt == [(0,)]


def test_what_was_measured_is_never_learnt_from(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [sampled("2", 1.0)], split="eval")
    with pytest.raises(ConfigError, match="those of its evaluations do not count"):
        best_episodes(run, EpisodeChoice())


@pytest.mark.parametrize(
    ("episodes", "problem"),
    [
        (
            [sampled("3", 0.5)],
            r"none of its 1 episodes succeeded; the best reward is 0.5: set --min",
        ),
        ([sampled("3", None)], "none of its 1 episodes has a reward"),
        (
            [
                sampled("2", None),
                replace(
                    sampled("3", None),
                    outcome=Outcome.failed(ErrorKind.INFRASTRUCTURE, "its end is not in the trace"),
                ),
            ],
            "none of its 2 episodes has a reward, 1 ended with a fault",
        ),
    ],
)
def test_a_run_without_good_episodes_is_refused(
    tmp_path: Path, episodes: list[object], problem: str
) -> None:
    run = run_with(tmp_path / "run", episodes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=problem):
        best_episodes(run, EpisodeChoice())


def test_recorded_tokens_are_trained_as_they_are(model_dir: Path, tmp_path: Path) -> None:
    greedy = sampled("2", 1.0, excluded=True)
    run = run_with(tmp_path / "run", [greedy])
    found = sources(model_dir).demonstrations([str(run.path)])
    [row] = found.rows
    assert row.tokens == tuple(b"1+1?2")  # no template: these are the sampled tokens
    assert row.loss_mask == (False,) * 4 + (True,)


def test_a_call_beside_the_conversation_is_not_imitated() -> None:
    [turn] = sampled("A title", 1.0).turns
    episode = replace(
        sampled("2", 1.0),
        turns=(replace(turn, excluded=Exclusion.SIDE_CALL), sampled("2", 1).turns[0]),
    )
    assert [thread.tokens().tokens for thread in threads(episode)] == [tuple(b"1+1?2")]


def test_text_of_another_provider_is_trained_where_the_provider_said_it(model_dir: Path) -> None:
    [thread] = threads(told("It is 2.", 1.0))
    row = thread.text()
    weights = [m.get("weight", 1) for m in row.messages if m["role"] == "assistant"]
    assert weights == [0, 1, 1]
    assert row.tools[0]["function"]["name"] == "add"


def test_recorded_text_is_rendered(model_dir: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [told("It is 2.", 1.0)])
    [row] = sources(model_dir).demonstrations([str(run.path)]).rows
    text = bytes(t for t in row.tokens if t < 256).decode()
    trained = bytes(
        t for t, m in zip(row.tokens, row.loss_mask, strict=True) if m and t < 256
    ).decode()
    assert '"name": "add"' in text.split("1+1?")[0]  # the tools
    assert trained.endswith("It is 2.")
    assert trained.count('"arguments": {}') == 1


def cut_off(episode: Episode, reason: FinishReason) -> Episode:
    """The episode, its last answer broken off."""
    *turns, last = episode.turns
    return replace(episode, turns=(*turns, replace(last, finish_reason=reason)))


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
def test_a_written_answer_that_was_cut_off_is_not_imitated(
    reason: FinishReason, model_dir: Path, tmp_path: Path
) -> None:
    """The text has no end, and rendering writes one: the student would learn to stop there."""
    run = run_with(tmp_path / "run", [cut_off(told("It is", 1.0), reason)])
    found = sources(model_dir).demonstrations([str(run.path)])
    [row] = found.rows
    trained = bytes(
        t for t, m in zip(row.tokens, row.loss_mask, strict=True) if m and t < 256
    ).decode()
    assert trained == '\n{"name": "add", "arguments": {}}\n', "the call before it is whole"
    assert found.notes() == [
        f"1 row left out, a written answer that was cut off; first: {run.path}, episode t-It is"
    ]


def with_image(episode: Episode) -> Episode:
    """The episode, an image in what its first turn was asked."""
    first, *rest = episode.turns
    *before, asked = first.new_messages
    parts = [{"type": "text", "text": asked["content"]}, {"type": "image_url", "image_url": {}}]
    asked = {**asked, "content": parts}
    return replace(episode, turns=(replace(first, new_messages=(*before, asked)), *rest))


def test_an_episode_of_another_provider_with_an_image_is_not_learnt_without_it(
    model_dir: Path, tmp_path: Path
) -> None:
    plain, shown = told("It is 2.", 1.0), with_image(told("It is 4.", 1.0))
    run = run_with(tmp_path / "run", [plain, shown])
    found = sources(model_dir).demonstrations([str(run.path)])
    assert len(found.rows) == 1
    assert found.notes() == [
        "1 row left out, with content that is no text, such as an image; first: episode t-It is 4."
    ]
    pairs = [
        with_image(told("It is 5.", 0.0, task="u")),
        with_image(told("It is 6.", 1.0, task="u")),
    ]
    compared = sources(model_dir).pairs(
        [str(run_with(tmp_path / "more", [plain, told("It is 3.", 0.0), *pairs]).path)]
    )
    assert (len(compared.rows), len(compared.left_out)) == (1, 1)


def test_sampled_tokens_that_were_cut_off_are_imitated_without_an_end(
    model_dir: Path, tmp_path: Path
) -> None:
    run = run_with(tmp_path / "run", [cut_off(sampled("2", 1.0), FinishReason.LENGTH)])
    [row] = sources(model_dir).demonstrations([str(run.path)]).rows
    assert row.tokens == tuple(b"1+1?2")


def test_an_episode_with_a_cut_off_written_answer_gives_no_pair(
    model_dir: Path, tmp_path: Path
) -> None:
    short = cut_off(told("It is", 0.0), FinishReason.LENGTH)
    right, wrong = told("It is 2.", 1.0), told("It is 3.", 0.5)
    run = run_with(tmp_path / "run", [right, short, wrong])
    found = sources(model_dir).pairs([str(run.path)])
    assert len(found.rows) == 1
    assert [note.split(",")[0] for note in found.notes()] == ["1 row left out"]
    with pytest.raises(ConfigError, match="1 left out: a written answer that was cut off"):
        sources(model_dir).pairs([str(run_with(tmp_path / "few", [right, short]).path)])


def pairs_of(model_dir: Path, run: RunDir) -> list[tuple[bytes, bytes]]:
    """The two texts of each pair, without the marks of a template."""

    def text(row: Demonstration) -> bytes:
        return bytes(token for token in row.tokens if token < 256)

    rows = sources(model_dir).pairs([str(run.path)]).rows
    return [(text(row.chosen), text(row.rejected)) for row in rows]


def test_pairs_are_the_best_against_the_worst_sibling(model_dir: Path, tmp_path: Path) -> None:
    run = run_with(
        tmp_path / "run",
        [
            sampled("2", 1.0, task="a"),
            sampled("3", 0.5, task="a"),
            sampled("4", 0.0, task="a"),
            sampled("5", 1.0, task="b"),
            sampled("6", 1.0, task="b"),
        ],
    )
    assert pairs_of(model_dir, run) == [(b"1+1?2", b"1+1?4")]


@pytest.mark.parametrize("make", [sampled, told])
def test_sessions_of_callers_are_paired_by_what_was_asked(
    make: Callable[..., Episode], model_dir: Path, tmp_path: Path
) -> None:
    """A caller asks many things; two callers may ask the same."""
    given = [
        make("2", 1.0, task="ann"),
        make("0", 0.0, task="ann", asked="2-1?"),
        make("1", 1.0, task="bob", asked="2-1?"),
        make("4", 0.0, task="bob"),
        make("9", 0.5, task="ann", asked="3*3?"),
    ]
    run = run_with(tmp_path / "run", [replace(episode, group="") for episode in given])
    texts = [(chosen[-1:], rejected[-1:]) for chosen, rejected in pairs_of(model_dir, run)]
    assert texts == [(b"2", b"4"), (b"1", b"0")]


def test_sessions_that_were_asked_the_same_are_paired_off(model_dir: Path, tmp_path: Path) -> None:
    given = {"2": 1.0, "two": 0.9, "about 2": 0.5, "3": 0.1, "4": 0.0}
    episodes = [replace(sampled(text, reward), group="") for text, reward in given.items()]
    run = run_with(tmp_path / "run", episodes)
    assert pairs_of(model_dir, run) == [(b"1+1?2", b"1+1?4"), (b"1+1?two", b"1+1?3")]


def test_an_answer_that_was_given_twice_counts_by_its_mean_reward(
    model_dir: Path, tmp_path: Path
) -> None:
    given = [("2", 1.0), ("2", 0.0), ("2", 0.0), ("3", 0.5), ("4", 0.5), ("5", 0.5)]
    run = run_with(tmp_path / "run", [sampled(text, reward) for text, reward in given])
    assert pairs_of(model_dir, run) == [(b"1+1?3", b"1+1?2")]


def test_conversations_of_one_session_are_compared_by_the_rewards_of_their_turns(
    model_dir: Path, tmp_path: Path
) -> None:
    """The first is asked twice, and the better answer goes on: it counts with what came of it."""
    good, bad = sampled("2", 1.0).turns[0], sampled("3", 1.0).turns[0]
    asked = (*good.tokens, *b" Sure?")
    more = replace(good, new_tokens=asked, output_tokens=(*b"!",), logprobs=(-0.5,), versions=(0,))
    turns = (good, bad, replace(more, parent=0))
    title = replace(sampled("Sums", 1.0).turns[0], excluded=Exclusion.SIDE_CALL)
    rewarded = Outcome.scored(0.5, turn_rewards=(None, 0.0, 0.5, None))
    episode = replace(sampled("2", 1.0), turns=(*turns, title), outcome=rewarded, group="")
    run = run_with(tmp_path / "run", [episode])
    [pair] = sources(model_dir).pairs([str(run.path)]).rows
    assert (bytes(pair.chosen.tokens), bytes(pair.rejected.tokens)) == (b"1+1?2 Sure?!", b"1+1?3")
    assert [i for i, m in enumerate(pair.chosen.loss_mask) if m] == [4, 11]
    at_once = replace(episode, outcome=Outcome.scored(1.0))
    several = run_with(tmp_path / "several", [at_once])
    with pytest.raises(
        ConfigError, match="1 left out: several conversations under one reward: post a reward"
    ):
        sources(model_dir).pairs([str(several.path)])


@pytest.mark.parametrize(
    ("episodes", "problem"),
    [
        (
            [sampled("2", 1.0), sampled("3", 1.0), sampled("4", 0.0, task="other")],
            "no pairs: no two different answers to one prompt have different rewards; "
            "there are 3 rewarded episodes and 2 prompts",
        ),
        ([sampled("2", 1.0), sampled("2", 0.0)], "and 1 prompt$"),
        ([sampled("2", None)], "none of its 1 episodes has a reward: post rewards"),
    ],
)
def test_a_run_without_pairs_is_refused(
    episodes: list[Episode], problem: str, model_dir: Path, tmp_path: Path
) -> None:
    run = run_with(tmp_path / "run", episodes)
    with pytest.raises(ConfigError, match=problem):
        sources(model_dir).pairs([str(run.path)])


def test_a_pair_whose_episodes_have_one_id_is_a_pair(model_dir: Path, tmp_path: Path) -> None:
    """A resumed run plays the tasks of lost episodes again, under their ids."""
    best = sampled("2", 1.0, task="a", id="g.0")
    run = run_with(tmp_path / "run", [best, sampled("4", 0.0, task="a", id="g.0")])
    [pair] = sources(model_dir).pairs([str(run.path)]).rows
    assert (pair.chosen.tokens, pair.rejected.tokens) == (tuple(b"1+1?2"), tuple(b"1+1?4"))


def test_pairs_of_text_are_rendered(model_dir: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [told("It is 2.", 1.0), told("It is 3.", 0.0)])
    [pair] = sources(model_dir).pairs([str(run.path)]).rows
    assert pair.lengths[0] == pair.lengths[1] > 0
    assert pair.chosen.tokens != pair.rejected.tokens


def test_tokens_of_another_tokenizer_are_refused(model_dir: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"] = {
        text: (token + 1) % 256 for text, token in vocabulary["model"]["vocab"].items()
    }
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    run = run_with(tmp_path / "run", [sampled("2", 1.0)], model=str(other))
    with pytest.raises(ConfigError, match="tokens of another tokenizer"):
        sources(model_dir).demonstrations([str(run.path)])


THOUGHT = {"messages": [ASKED, {**said("2"), "reasoning_content": "One and one."}]}
TOLD = {"messages": [ASKED, said("2")], "system": "Be brief."}


def text_of(row: Demonstration, model_dir: Path, *, trained: bool = False) -> str:
    kept = [t for t, m in zip(row.tokens, row.loss_mask, strict=True) if m or not trained]
    return Renderer.load(model_dir).tokenizer.decode(kept)


def test_thoughts_and_a_system_column_are_rendered_where_the_template_has_a_place(
    tmp_path: Path,
) -> None:
    model_dir = make_model_dir(tmp_path / "qwen3", "qwen3")
    found = sources(model_dir).demonstrations([written(tmp_path / "rows.jsonl", THOUGHT, TOLD)])
    thought, told = found.rows
    assert "One and one." in text_of(thought, model_dir, trained=True)
    assert "Be brief." in text_of(told, model_dir)
    assert "Be brief." not in text_of(told, model_dir, trained=True)
    [note] = found.notes()
    assert note.startswith('1 row with a "system" column, which is the system message; first: ')


@pytest.fixture
def placeless(tmp_path: Path) -> Path:
    """A model whose template has no place for thoughts or for a system message."""
    model_dir = make_tiny_model(tmp_path / "plain")
    (model_dir / "chat_template.jinja").write_text(
        "{% for message in messages %}{% if message.role != 'system' %}"
        "{{ '<' + message.role + '>' + message.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return model_dir


def test_thoughts_and_a_system_column_without_a_place_are_left_out_named_and_counted(
    placeless: Path, tmp_path: Path
) -> None:
    read = sources(placeless)
    found = read.demonstrations([written(tmp_path / "rows.jsonl", THOUGHT, TOLD, THOUGHT)])
    texts = [text_of(row, placeless) for row in found.rows]
    assert texts == ["<user>1+1?<assistant>2"] * 3
    place = f"{tmp_path / 'rows.jsonl'}, line"
    assert found.notes() == [
        "2 rows with thoughts (reasoning_content), which are left out: the chat template has no place for "
        f"them; first: {place} 1",
        '1 row with a "system" column, which is left out: the chat template has no place for it; '
        f"first: {place} 2",
    ]


def test_pairs_leave_out_what_has_no_place_as_rows_do(placeless: Path, tmp_path: Path) -> None:
    thought = {**said("2"), "reasoning_content": "One and one."}
    pair = {"system": "Be brief.", "messages": [ASKED], "chosen": thought, "rejected": "3"}
    compared = sources(placeless).pairs([written(tmp_path / "pairs.jsonl", pair)])
    assert [note.split(" with ")[1][:8] for note in compared.notes()] == ["thoughts", 'a "syste']


def test_long_and_equal_rows_are_counted(model_dir: Path, tmp_path: Path) -> None:
    short, long = ({"messages": [ASKED, said("2" * n)]} for n in (1, 500))
    found = sources(model_dir, max_tokens=200).demonstrations(
        [written(tmp_path / "rows.jsonl", short, long)]
    )
    assert len(found.rows) == 1
    [note] = found.notes()
    assert note.startswith("1 row left out, longer than 200 tokens (finetune.max_tokens); first: ")
    assert note.endswith("rows.jsonl, line 2")

    equal = {"prompt": "1+1?", "chosen": "2", "rejected": "2"}
    with pytest.raises(ConfigError, match=r"nothing to learn from in .*both answers are the same"):
        sources(model_dir).pairs([written(tmp_path / "pairs.jsonl", equal)])


def test_a_pair_keeps_the_prompt_out_of_the_loss(model_dir: Path, tmp_path: Path) -> None:
    row = {"messages": [ASKED, said("0"), ASKED], "chosen": "2", "rejected": "three"}
    [pair] = sources(model_dir).pairs([written(tmp_path / "pairs.jsonl", row)]).rows
    assert pair.lengths == (len("2") + 1, len("three") + 1)  # and the end of the turn
    shared = pair.chosen.loss_mask.index(True)
    assert pair.chosen.tokens[:shared] == pair.rejected.tokens[:shared]
