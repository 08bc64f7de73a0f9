"""A dataset on disk as `datasets` saves it."""

import json
from pathlib import Path

import pyarrow


def saved(directory: Path, rows: list[dict[str, str]]) -> Path:
    """Rows written as `datasets.Dataset.save_to_disk` writes them."""
    directory.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    with (
        pyarrow.OSFile(str(directory / "data-00000-of-00001.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as stream,
    ):
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (directory / "state.json").write_text(json.dumps(state))
    return directory
