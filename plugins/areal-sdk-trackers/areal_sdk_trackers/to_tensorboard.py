"""TensorBoard: scalars, and texts for settings, evaluations and samples."""

import json
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def begin(
    *, name: str, run_dir: str, settings: dict[str, Any], options: dict[str, Any]
) -> "TensorBoard":
    parent = options["dir"]
    directory = Path(parent) / name if parent else Path(run_dir) / "tensorboard"
    made = TensorBoard(EventFileWriter(str(directory)))
    made.text("settings", 0, f"```\n{json.dumps(settings, indent=2)}\n```")
    return made


class TensorBoard:
    def __init__(self, writer: EventFileWriter) -> None:
        self._writer = writer
        self._evaluations: list[str] = []

    def metrics(self, *, step: int, values: dict[str, float]) -> None:
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, Summary(value=scalars))

    def evaluation(self, *, name: str, split: str, step: int, values: dict[str, float]) -> None:
        self.metrics(step=step, values={f"{split}/{key}": v for key, v in values.items()})
        cells = (name, split, step, *(f"{key} {value:.4g}" for key, value in values.items()))
        self._evaluations.append("- " + ", ".join(map(str, cells)))
        self.text("evaluations", step, "\n".join(self._evaluations))

    def samples(self, *, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        parts = []
        for row in rows:
            facts = ", ".join(f"{key} {row[key]}" for key in row if key != "text")
            parts.append(f"**{facts}**\n\n```\n{row['text']}\n```")
        self.text(f"samples/{split}", step, "\n\n".join(parts))

    def end(self, *, values: dict[str, float] | None) -> None:
        if values is not None:
            self.text("summary", 0, f"```\n{json.dumps(values, indent=2)}\n```")
        self._writer.close()

    def text(self, tag: str, step: int, markdown: str) -> None:
        self._add(step, text_pb(tag, markdown))

    def _add(self, step: int, summary: Summary) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
