"""Tasks made of a small source distribution: a function is changed until its tests fail, and mended in a sandbox."""

import io
import tarfile
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.testing import run_agent, tool_call
from areal_sdk_harbor.agent import Harbor
from areal_sdk_harbor.command import harbor
from areal_sdk_harbor.dataset import directories, tasks
from areal_sdk_harbor.definition import read_definition
from areal_sdk_harbor.mutants.operators import mutants_of
from areal_sdk_harbor.trial import Room, Verdict, ready, solve, verify
from areal_sdk_sandbox import why_not_isolated

pytestmark = pytest.mark.skipif(bool(why := why_not_isolated()), reason=why or "bubblewrap runs")

SOURCE = '''"""Counting, with a path /var/counts in a text."""

LIMIT = 3


def is_small(number):
    return number < LIMIT  # not LIMIT itself


class Tally:
    def __init__(self):
        self.total = 0

    def add(self, number, times=1):
        self.total = self.total + number * times
        return self.total


def unused(number):
    return number + 1
'''
TESTS = """import pytest
from {name} import Tally, is_small

@pytest.mark.parametrize(("number", "small"), [(2, True), (3, False), (4, False)])
def test_small(number, small):
    assert is_small(number) is small

def test_tally():
    tally = Tally()
    assert [tally.add(2), tally.add(3, 2)] == [2, 8]

def test_that_fails_anyway():
    assert False
"""


def sdist(directory: Path, name: str, *, place: str = "", tests: str = TESTS) -> Path:
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nLicense: MIT\n",
        f"{place}{name}/__init__.py": SOURCE,
        "tests/test_counting.py": tests.format(name=name),
        "setup.py": "raise SystemExit\n",
    }
    path = directory / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            about = tarfile.TarInfo(f"{name}-1.0/{file}")
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text.encode()))
    return path


def mutated(output: Path, *sdists: Path, count: int = 2, seed: int = 0) -> str:
    words = [*map(str, sdists), "--output", str(output), "--count", str(count), "--seed", str(seed)]
    said = CliRunner().invoke(harbor, ["mutate", *words], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    return said.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks of a distribution whose packages are in `src`."""
    room = tmp_path_factory.mktemp("mutants")
    mutated(room / "tasks", sdist(room, "counting", place="src/"))
    return room / "tasks" / "train"


def test_a_change_leaves_the_rest_of_a_file_as_it_is() -> None:
    found = list(mutants_of(SOURCE))
    assert {one.function for one in found} == {"is_small", "Tally.__init__", "Tally.add", "unused"}
    before = SOURCE.splitlines()
    for one in found:
        after = one.source.splitlines()
        changed = [n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
        assert changed == [one.line]
    assert "    return number <= LIMIT  # not LIMIT itself\n" in found[0].source


async def test_the_truth_earns_the_reward_and_no_work_earns_none(made: Path) -> None:
    found = directories(made)
    assert len(found) == 2
    for path in found:
        task = read_definition(path)
        async with ready(task, Room()) as untouched:
            before = await verify(untouched, task)
        async with ready(task, Room()) as solved:
            assert await solve(solved, task) == ""
            after = await verify(solved, task)
        assert (before.reward, after) == (0.0, Verdict(1.0, {"tests_passed": 1.0}))
        about = tomllib.loads((path / "task.toml").read_text())["metadata"]
        assert (about["distribution"], about["license"]) == ("counting", "MIT")
        assert about["function"] not in ("unused", "")
        assert "test_that_fails_anyway" not in task.instruction


SRC = "src/counting/__init__.py"
HOSTILE = {
    "edited tests": "echo 'def test_small(): pass' > tests/test_counting.py",
    "tests that skip": "echo 'import pytest; pytest.skip(allow_module_level=True)' > conftest.py",
    "settings": "printf '[pytest]\\naddopts = --co\\n' > pytest.ini",
    "exit 0": f"printf '\\nimport os\\nos._exit(0)\\n' >> {SRC}",
    "sys.exit": f"printf '\\nraise SystemExit(0)\\n' >> {SRC}",
    "sitecustomize": "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py pytest.py",
    "own reward": f'printf \'\\nopen("/logs/verifier/reward.txt", "w").write("1")\\n\' >> {SRC}',
    "own report": f"printf '\\nimport glob, json, os, sys\\n"
    'open(sys.argv[3], "w").write(json.dumps({"token": "", "passed": []}))\\nos._exit(0)\\n\''
    f" >> {SRC}",
    "no source": f"rm {SRC}",
    "a link": f"mv {SRC} /app/real.py; ln -s /app/real.py {SRC}",
}


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_patch_earns_nothing(made: Path, name: str) -> None:
    task = read_definition(directories(made)[0])
    async with ready(task, Room()) as machine:
        end = await machine.run(["bash", "-c", HOSTILE[name]], cwd="/app", env={}, timeout_s=60.0)
        assert end.code == 0, end.output
        assert (await verify(machine, task)).reward == 0.0


@pytest.mark.long
async def test_a_model_reads_edits_and_runs_tests(made: Path) -> None:
    (task, *_) = tasks("eval", path=str(made), held_out=1.0)
    definition = read_definition(Path(task.data["path"]))
    assert definition.solution is not None
    truth = next(data for name, _, data in definition.solution.files if name == "truth.py")
    test = "python3 -m pytest -q -c /dev/null tests"
    mend = f"cat > {SRC} <<'EOT'\n{truth.decode()}EOT\n{test}"
    script = [tool_call("shell", command=one) for one in (f"cat {SRC}; {test}", mend)]
    episode = await run_agent(Harbor(), task, engine=[*script, "Done."], timeout_s=120.0)
    assert (episode.reward, episode.outcome.success) == (1.0, True)
    before, after = (str(m["content"]) for m in episode.messages if m["role"] == "tool")
    assert "1 failed, 4 passed" not in before
    assert "1 failed, 4 passed" in after  # the one that fails anyway


def test_a_distribution_whose_truth_is_installed_is_left_out(tmp_path: Path) -> None:
    given = sdist(tmp_path, "pluggy", place="src/")
    words = ["mutate", str(given), "--output", str(tmp_path / "tasks")]
    said = CliRunner().invoke(harbor, words).output
    assert "left out: pluggy is installed here (" in said
    assert "pluggy/__init__.py" in said
    assert directories(tmp_path / "tasks") == []


@pytest.mark.long
def test_the_same_seed_makes_the_same_tasks_and_a_distribution_is_in_one_split(
    tmp_path: Path,
) -> None:
    given = [sdist(tmp_path, name) for name in ("one", "two")]
    broken = sdist(tmp_path, "three", tests="import no_such_module\n")
    said = mutated(tmp_path / "a", *given, broken, count=1)
    assert "left out: no test of three 1.0 passes in the sandbox" in said
    mutated(tmp_path / "b", *given, broken, count=1)
    a, b = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "a", tmp_path / "b")
    )
    assert a == b
    splits = [
        {path.name.partition("-")[0] for path in directories(tmp_path / "a" / split)}
        for split in ("train", "eval")
    ]
    assert sorted(name for split in splits for name in split) in (["one", "two"], ["one"], ["two"])
