"""How containers are asked for; tests/live/test_containers.py really starts them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from helios.errors import UsageError
from helios.training.pool import containers
from helios.training.pool.containers import RUNTIMES, Inside, find_container, unpack
from helios.training.pool.devices import _counts
from helios.training.pool.growth import describe
from helios.training.pool.sweep import ContainerChoice
from helios.training.pool.sweep_file import read_training_sweep

INSIDE = Inside(
    binds=("/data", "/home/me/sweep"),
    folder="/home/me/sweep",
    notes="/home/me/sweep/pool",
    environment={"HELIOS_POOL": "abc", "SEED": "1,2"},
    gpus=True,
)


def a_sweep(folder: Path, container: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(f'command = "train {{x}}"\ncontainer = {container}\n[parameters]\nx = [1]\n')
    return path


def test_each_runtime_gets_folders_environment_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    words = {name: " ".join(how.command("image", INSIDE)) for name, how in RUNTIMES if name != "charliecloud"}
    assert "HELIOS_POOL=abc SEED=1,2 srun --overlap" in words["slurm"]
    assert "--export=HELIOS_POOL,SEED" in words["slurm"]  # values with commas are in the environment
    assert "--mem={limit_mib}M --nodelist={node}" in words["slurm"]
    assert "--container-mounts=/data:/data,/home/me/sweep:/home/me/sweep" in words["slurm"]
    assert "exec --cleanenv --no-home --nv --bind=/data:/data" in words["apptainer"]
    assert words["apptainer"].endswith("--env=SEED=1,2 --pwd=/home/me/sweep image")
    assert "--device=nvidia.com/gpu=all --volume=/data:/data" in words["podman"]
    assert "--label=HELIOS_POOL=abc" in words["podman"]


def test_an_oci_bundle_is_for_slurm_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    words = dict(RUNTIMES)["slurm"].command(str(tmp_path), INSIDE)
    assert words[-1] == f"--container={tmp_path}"


def test_charliecloud_binds_what_is_not_below_tmp_and_makes_its_place(tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "ch").mkdir(parents=True)
    (image / "ch" / "environment").touch()
    words = dict(RUNTIMES)["charliecloud"].command(str(image), INSIDE)
    assert (image / "home/me/sweep").is_dir()
    assert "--bind=/data:/data" in words
    assert words.index("--set-env") < words.index("--set-env=SEED=1,2")  # ours is above the image's
    (image / "data").rmdir()
    (image / "data").symlink_to("/")
    with pytest.raises(ValueError, match="is a link"):
        dict(RUNTIMES)["charliecloud"].command(str(image), INSIDE)


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ('"missing.sif"', "line 2: the container image .*missing.sif does not exist"),
        ('{ image = "x", runtime = "docker" }', "the container runtime 'docker' is unknown"),
        ('{ image = "x", binds = ["/no/such"] }', "/no/such cannot be bound"),
        ('{ imag = "x" }', "the key 'imag' is unknown"),
        ("3", "container"),
    ],
)
def test_a_wrong_container_is_refused_with_the_line(tmp_path: Path, container: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_training_sweep(a_sweep(tmp_path, container))


def test_the_program_need_not_be_on_the_machine_itself(tmp_path: Path) -> None:
    (tmp_path / "image.sif").touch()
    sweep = read_training_sweep(a_sweep(tmp_path, '"image.sif"'))
    assert sweep.container == ContainerChoice(image=str(tmp_path / "image.sif"))
    plain = read_training_sweep(a_sweep(tmp_path, '"other:1.0"'))
    assert plain.container == ContainerChoice(image="other:1.0")
    assert describe(plain) != describe(sweep)


def test_without_a_runtime_each_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    sweep = read_training_sweep(a_sweep(tmp_path, '"name:1.0"'))
    with pytest.raises(UsageError, match="slurm: this is no Slurm job; apptainer: it is not installed; podman: it is"):
        find_container(sweep, tmp_path / "pool", gpus=False)


def test_an_archive_is_unpacked_once_and_a_damaged_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "etc").mkdir()
    with tarfile.open(tmp_path / "image.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "etc", "etc")
    first = unpack(tmp_path / "image.tar.gz")
    assert (first / "etc").is_dir()
    (first / "kept").touch()
    assert (unpack(tmp_path / "image.tar.gz") / "kept").exists()
    (tmp_path / "damaged.tar").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(tmp_path / "damaged.tar")


def test_cores_of_nodes_are_read_from_slurms_short_form() -> None:
    assert _counts("4(x2),8") == [4, 4, 8]
