"""The sources of a fine-tuning run's data: files and run directories, in tokens."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from areal_sdk.builtin.rows import is_saved_dataset
from areal_sdk.config import FinetuneSection
from areal_sdk.errors import ConfigError
from areal_sdk.finetune.contrasts import contrasts, read_pair
from areal_sdk.finetune.recorded_episodes import (
    CUT_OFF,
    EpisodeChoice,
    best_episodes,
    is_text,
    num_cut_off,
    threads,
)
from areal_sdk.finetune.rendering import Dataset, TokenPair, render_conversations, render_pairs
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.plan.rows import Pair, read_conversations, read_pairs
from areal_sdk.models import find_model
from areal_sdk.telemetry import RunDir
from areal_sdk.trainer import Demonstration

TOKENIZER = "tokenizer.json"

T = TypeVar("T", Demonstration, TokenPair)


class Sources:
    """Reads data for one model. If a row cannot be learnt from, ConfigError says where the row is."""

    def __init__(self, section: FinetuneSection, model_dir: Path, renderer: Renderer) -> None:
        self._section = section
        self._model_dir = model_dir
        self._renderer = renderer
        self._same_tokens: set[Path] = set()
        """Runs whose tokenizer is known to be that of the model."""

    def demonstrations(self, places: Sequence[str]) -> Dataset[Demonstration]:
        """Conversations from files, and the best episodes from run directories."""
        found: Dataset[Demonstration] = Dataset()
        for place in places:
            path = Path(place).expanduser()
            if path.is_dir() and not is_saved_dataset(path):
                self._add_episodes(found, RunDir.open(path))
            else:
                rows = read_conversations(path)
                found.add(render_conversations(rows, self._renderer, max_tokens=self._most))
        return _checked(found, places)

    def pairs(self, places: Sequence[str]) -> Dataset[TokenPair]:
        """Pairs from files, and pairs of answers to one prompt from run directories."""
        found: Dataset[TokenPair] = Dataset()
        for place in places:
            path = Path(place).expanduser()
            if path.is_dir() and not is_saved_dataset(path):
                self._add_contrasts(found, RunDir.open(path))
            else:
                rows = read_pairs(path)
                found.add(render_pairs(rows, self._renderer, max_tokens=self._most))
        return _checked(found, places)

    @property
    def _most(self) -> int:
        return self._section.max_tokens

    def _add_episodes(self, found: Dataset[Demonstration], run_dir: RunDir) -> None:
        selection = EpisodeChoice(self._section.min_reward, self._section.per_task)
        for episode in best_episodes(run_dir, selection):
            where = f"{run_dir.path}, episode {episode.id}"
            found_in = threads(episode)
            chosen = [thread for thread in found_in if selection.admits_policy(thread)]
            for _ in found_in[len(chosen) :]:
                found.leave_out("of a policy that did worse, or of a frozen one beside it", where)
            if is_text(episode):
                for _ in range(num_cut_off(episode)):
                    found.leave_out(CUT_OFF, where)
                rows = [thread.text() for thread in chosen]
                found.add(render_conversations(rows, self._renderer, max_tokens=self._most))
                continue
            self._check_same_tokens(run_dir)
            for thread in chosen:
                found.add_if_usable(thread.tokens(), where, max_tokens=self._most)

    def _add_contrasts(self, found: Dataset[TokenPair], run_dir: RunDir) -> None:
        compared = contrasts(run_dir)
        for best, worst in compared.pairs:
            pair = read_pair(run_dir, best, worst)
            if isinstance(pair, Pair):
                found.add(render_pairs([pair], self._renderer, max_tokens=self._most))
                continue
            self._check_same_tokens(run_dir)
            where = f"{run_dir.path}, episodes {best.source.id} and {worst.source.id}"
            found.add_if_usable(pair, where, max_tokens=self._most)
        for why, ids in compared.left_out.items():
            for episode_id in ids:
                found.leave_out(why, f"{run_dir.path}, episode {episode_id}")

    def _check_same_tokens(self, run_dir: RunDir) -> None:
        """Raise ConfigError if another tokenizer made the run's tokens, since they are learnt as they are."""
        if run_dir.path in self._same_tokens:
            return
        theirs, ours = _tokenizer_of(run_dir), _digest(self._model_dir / TOKENIZER)
        if theirs is not None and theirs != ours:
            raise ConfigError(
                f"{run_dir.path} recorded tokens of another tokenizer than that of "
                f"{self._model_dir}: fine-tune a model of the same family, or play the tasks through "
                "`areal-sdk serve --upstream`, which keeps text"
            )
        self._same_tokens.add(run_dir.path)


def _tokenizer_of(run_dir: RunDir) -> str | None:
    """The digest of a run's tokenizer; None if the model of the run is not on this machine."""
    for exported in sorted(run_dir.checkpoints.glob(f"*/{TOKENIZER}")):
        return _digest(exported)
    config = run_dir.read_config()
    model_dir = find_model(str(config.get("model", "")))
    return None if model_dir is None else _digest(model_dir / TOKENIZER)


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _checked(found: Dataset[T], places: Iterable[str]) -> Dataset[T]:
    if not found.rows:
        why = "; ".join(found.notes()) or "it has no rows"
        raise ConfigError(f"nothing to learn from in {', '.join(places)}: {why}")
    return found
