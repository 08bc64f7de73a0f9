"""The files of examples/cluster and examples/docker: each is read by what reads it for real, where that is installed."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner
from ray.autoscaler._private.util import prepare_config, validate_config

from areal_sdk.cli.main import cli
from areal_sdk.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = EXAMPLES / "cluster"
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()


def read(name: str) -> Any:
    return yaml.safe_load((CLUSTER / name).read_text())


def test_ray_up_accepts_its_file() -> None:
    config = prepare_config(read("ray-up.yaml"))
    validate_config(config)
    assert config["available_node_types"]["main"]["resources"]["CPU"] == 0
    assert "--num-cpus=0" in config["head_start_ray_commands"][-1]


def test_the_manifest_of_kuberay_is_whole() -> None:
    claim, job = yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text())
    assert (claim["kind"], claim["spec"]["accessModes"]) == (
        "PersistentVolumeClaim",
        ["ReadWriteMany"],
    )
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert groups[0]["rayStartParams"]["num-cpus"] == "0"
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert container["resources"]["limits"] == container["resources"]["requests"]
        (shared,) = (volume for volume in pod["volumes"] if volume["name"] == "shared")
        assert shared["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    for group in groups[1:]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_task_of_skypilot_has_only_fields_that_skypilot_knows() -> None:
    task = read("skypilot.yaml")
    known = {"name", "num_nodes", "workdir", "resources", "file_mounts", "setup", "run", "envs"}
    assert task.keys() <= known
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("name", ["slurm.sbatch", "torchrun.sh"])
def test_scripts_are_bash(name: str) -> None:
    subprocess.run(["bash", "-n", CLUSTER / name], check=True)


def test_the_directives_of_slurm_come_before_any_command() -> None:
    lines = (CLUSTER / "slurm.sbatch").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(i < first for i, line in enumerate(lines) if line.startswith("#SBATCH"))


def commands() -> list[tuple[str, str]]:
    """Every `areal-sdk train` of the files, with the name of its file."""
    found = []
    for path in sorted(CLUSTER.iterdir()):
        text = re.sub(r"\\\n(# *)?", " ", path.read_text())
        text = re.sub(r"\n +(?=--)", " ", text)
        found += [(path.name, line) for line in re.findall(r"areal-sdk (train [^\n'>&]+)", text)]
    return [(name, line) for name, line in found if "--resume" not in line and "agent" in line]


def test_every_file_has_a_command() -> None:
    assert {name for name, _ in commands()} >= {"ray-up.yaml", "kuberay.yaml", "skypilot.yaml"}


@pytest.mark.parametrize(("name", "line"), commands(), ids=lambda value: value[:12])
def test_the_settings_of_each_command_exist(name: str, line: str) -> None:
    line = re.sub(r"\$\{?\w+\}?", "host", re.sub(r"\$\(\([^)]*\)\)", "4", line))
    words = shlex.split(line)[1:]
    arguments = iter(words)
    settings = []
    for word in arguments:
        if word == "--set":
            settings.append(next(arguments))
        elif word == "--launcher":
            settings.append(f"cluster.launcher={next(arguments)}")
    config = load_config(settings=[*settings, "model=tiny"])
    assert config.cluster.launcher in ("ray", "torchrun")


def test_images_are_made_by_pip_and_by_commands_that_exist() -> None:
    for path in (EXAMPLES / "docker").iterdir():
        for line in path.read_text().splitlines():
            instruction, _, rest = line.partition(" ")
            assert instruction in {"", "#", "FROM", "ARG", "ENV", "RUN", "WORKDIR", "CMD"}, line
            if instruction == "RUN" and rest.startswith("areal-sdk"):
                words = shlex.split(rest)[1:]
                options = [word for word in words if word.startswith("--")]
                names = words[: words.index(options[0])]
                told = CliRunner().invoke(cli, [*names, "--help"])
                assert told.exit_code == 0, line
                assert all(option in told.output for option in options), line
            elif instruction == "RUN":
                assert rest.startswith(("python -m venv ", "python -m pip install ")), line


def test_the_page_names_every_file() -> None:
    for path in [*CLUSTER.iterdir(), *(EXAMPLES / "docker").iterdir()]:
        assert f"../examples/{path.parent.name}/{path.name}" in PAGE, path.name
