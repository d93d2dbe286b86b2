"""The module that training programs import, with and without a pool."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import tarfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helios_task
import pytest

from helios.training.pool.reports import ReportReader, TaskRequest, write_request
from helios.training.run import run_pool

TASK = Path(__file__).parents[2] / "task"
SOURCE = (TASK / "helios_task.py").read_text()


@pytest.fixture(autouse=True)
def no_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REPORT", "REQUESTS", "CHECKPOINTS", "TRIAL", "PARAMETERS"):
        monkeypatch.delenv(f"HELIOS_{name}", raising=False)
    for name in ("SLURM_JOB_ID", "SLURM_PROCID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    before = helios_task._state
    helios_task._state = helios_task._State()
    yield
    helios_task._state = before


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportReader:
    """What a pool gives a trial; the reader of its reports."""
    for name, value in in_pool(tmp_path).items():
        monkeypatch.setenv(name, value)
    return ReportReader(tmp_path / "report")


def in_pool(folder: Path) -> dict[str, str]:
    return {
        "HELIOS_REPORT": str(folder / "report"),
        "HELIOS_REQUESTS": str(folder / "requests"),
        "HELIOS_CHECKPOINTS": str(folder / "checkpoints"),
        "HELIOS_TRIAL": "3",
        "HELIOS_PARAMETERS": '{"lr": 0.1}',
    }


def program(text: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a program with the module copied beside it."""
    (folder / "helios_task.py").write_text(SOURCE)
    (folder / "program.py").write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HELIOS_", "PYTHON"))}
    return subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# The package.


def test_it_is_python_3_9_and_needs_nothing() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 9))
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        alias.name if isinstance(node, ast.Import) else str(node.module) for node in at_import for alias in node.names
    }
    assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names}
    frameworks = {
        str(node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.col_offset
    }
    assert frameworks == {"collections", "lightning", "pytorch_lightning", "transformers"}


def test_it_builds_and_holds_one_module(tmp_path: Path) -> None:
    source = tmp_path / "task"
    source.mkdir()
    for name in ("helios_task.py", "pyproject.toml", "README.md"):
        (source / name).write_text((TASK / name).read_text())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("helios_task-*.whl")
    (sdist,) = (tmp_path / "dist").glob("helios_task-*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        assert [name for name in files.namelist() if "dist-info" not in name] == ["helios_task.py"]
        (metadata,) = (name for name in files.namelist() if name.endswith("METADATA"))
        lines = files.read(metadata).decode().splitlines()
        assert f"Version: {helios_task.__version__}" in lines
        assert "Requires-Python: >=3.9" in lines
        assert not any(line.startswith("Requires-Dist") for line in lines)
    with tarfile.open(sdist) as archive:
        assert {Path(name).name for name in archive.getnames()} >= {"helios_task.py", "pyproject.toml", "README.md"}


# Without a pool.

ALONE = """
import helios_task
assert helios_task.trial() is None
assert helios_task.parameters(lr=1) == {"lr": 1}
assert helios_task.requested() is None
assert helios_task.latest_checkpoint() is None
helios_task.report(step=1, loss=0.5)
with helios_task.save_checkpoint("a") as path:
    path.write_text("x")
print(helios_task.latest_checkpoint())
"""


def test_without_a_pool_nothing_is_left_behind(tmp_path: Path) -> None:
    done = program(ALONE, tmp_path)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    assert out.strip().endswith("/a")
    assert not Path(out.strip()).parent.exists()
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"helios_task.py", "program.py"}


def test_without_a_pool_checkpoints_may_have_a_folder(tmp_path: Path) -> None:
    assert helios_task.checkpoint_folder(tmp_path / "mine") == tmp_path / "mine"
    with helios_task.save_checkpoint("model.pt") as path:
        path.write_text("x")
    assert helios_task.latest_checkpoint() == tmp_path / "mine" / "model.pt"


# Reports.


@pytest.mark.filterwarnings("error")
def test_reports_are_what_the_pool_reads(pool: ReportReader) -> None:
    torch = pytest.importorskip("torch")
    helios_task.report(
        step=2, progress=0.25, message="so far", accuracy=torch.tensor(0.5, requires_grad=True), **{"val/loss": 2}
    )
    helios_task.report(loss=float("nan"), checkpoint="a.pt")
    first, second = pool.read()
    assert (first.step, first.progress, first.message) == (2, 0.25, "so far")
    assert first.metrics == {"accuracy": 0.5, "val/loss": 2.0}
    assert first.time_s is not None
    assert (second.not_finite, second.checkpoint) == (("loss",), "a.pt")


@pytest.mark.usefixtures("pool")
def test_values_that_are_no_numbers_are_the_programs_mistake() -> None:
    for metrics in ({"a": "x"}, {"a": None}, {"a": [1]}, {"answer": 1}, {"time_s": 1}):
        with pytest.raises((TypeError, ValueError)):
            helios_task.report(**metrics)


def test_reports_that_cannot_be_written_are_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELIOS_REPORT", str(tmp_path / "missing" / "report"))
    for _ in range(3):
        helios_task.report(loss=1)
    assert capfd.readouterr().err.count("reports cannot be written") == 1


FULL = """
import os, resource, signal, helios_task
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
helios_task.report(step=0)
size = os.path.getsize(os.environ["HELIOS_REPORT"])
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 9, resource.RLIM_INFINITY))
helios_task.report(step=1)
helios_task.report(step=2)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
helios_task.report(step=3)
"""


def test_after_a_full_disk_reports_are_whole_again(tmp_path: Path) -> None:
    done = program(FULL, tmp_path, **in_pool(tmp_path))
    _, err = done.communicate()
    assert done.returncode == 0, err
    reader = ReportReader(tmp_path / "report")
    assert [report.step for report in reader.read()] == [0, 3]
    assert reader.skipped_lines == 1


def test_processes_may_report_at_once(tmp_path: Path) -> None:
    text = "import helios_task\nfor step in range(200):\n    helios_task.report(step=step, " + "a" * 80 + "=1)"
    both = [program(text, tmp_path, **in_pool(tmp_path)) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    for each in both:
        each.communicate()
    reader = ReportReader(tmp_path / "report")
    assert sorted(report.step or 0 for report in reader.read()) == sorted([*range(200)] * 2)
    assert reader.skipped_lines == 0


@pytest.mark.usefixtures("pool")
def test_number_and_parameters_come_from_the_pool() -> None:
    assert helios_task.trial() == 3
    assert helios_task.parameters(lr=1, width=2) == {"lr": 0.1, "width": 2}


# Requests.


def test_pause_stays_and_a_checkpoint_is_asked_once(pool: ReportReader, tmp_path: Path) -> None:
    path = tmp_path / "requests"
    assert helios_task.requested() is None
    write_request(path, TaskRequest.CHECKPOINT)
    assert [helios_task.requested() for _ in range(3)] == ["checkpoint", None, None]
    write_request(path, TaskRequest.CHECKPOINT)
    assert [helios_task.requested() for _ in range(2)] == ["checkpoint", None]
    write_request(path, TaskRequest.PAUSE)
    assert [helios_task.requested() for _ in range(2)] == ["pause", "pause"]
    write_request(path, TaskRequest.STOP)
    assert [helios_task.requested() for _ in range(2)] == ["stop", "stop"]
    write_request(path, None)
    assert helios_task.requested() is None
    answers = [report.answer for report in pool.read()]
    assert answers == [TaskRequest.CHECKPOINT] * 2 + [TaskRequest.PAUSE, TaskRequest.STOP]


@pytest.mark.usefixtures("pool")
def test_the_details_of_a_request_can_be_asked(tmp_path: Path) -> None:
    assert helios_task.request_details() == {}
    write_request(tmp_path / "requests", TaskRequest.PAUSE, by_s=12.5, devices=["gpu:0"] * 2_000)
    assert helios_task.requested() == "pause"
    assert (helios_task.request_details()["by_s"], len(helios_task.request_details()["devices"])) == (12.5, 2_000)


def test_a_report_says_whether_to_stop(pool: ReportReader, tmp_path: Path) -> None:
    assert not helios_task.report(step=1)
    for request in (TaskRequest.CHECKPOINT, TaskRequest.PAUSE):
        write_request(tmp_path / "requests", request)
        assert not helios_task.report(step=2)
    write_request(tmp_path / "requests", TaskRequest.STOP)
    assert helios_task.report(step=3)
    assert [report.answer for report in pool.read() if report.answer] == [TaskRequest.STOP]


def test_a_report_that_nobody_looks_at_answers_nothing(pool: ReportReader, tmp_path: Path) -> None:
    write_request(tmp_path / "requests", TaskRequest.STOP)
    helios_task.report(step=1)
    assert [report.answer for report in pool.read()] == [None]


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("content", ["", "pause", "[]", '{"request": 3}', '{"request": "dance"}', "\xff"])
def test_requests_that_are_none_are_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "requests").write_text(content, encoding="latin-1")
    assert helios_task.requested() is None


WATCHES = """
import helios_task, time
helios_task.watch_signals()
print("ready", flush=True)
while helios_task.requested() is None:
    time.sleep(0.01)
print(helios_task.requested())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_a_request_to_pause(tmp_path: Path, number: signal.Signals) -> None:
    started = program(WATCHES, tmp_path, **in_pool(tmp_path))
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    started.send_signal(number)
    out, err = started.communicate()
    assert (started.returncode, out, err) == (0, "pause\n", "")
    assert [report.answer for report in ReportReader(tmp_path / "report").read()] == [TaskRequest.PAUSE]


# Checkpoints.


def test_a_checkpoint_is_complete_or_the_one_before(pool: ReportReader) -> None:
    assert helios_task.latest_checkpoint() is None
    with helios_task.save_checkpoint("a.pt", step=4) as path:
        path.write_text("first")
        assert helios_task.latest_checkpoint() is None
    with pytest.raises(RuntimeError), helios_task.save_checkpoint("a.pt") as path:
        path.write_text("half")
        raise RuntimeError
    latest = helios_task.latest_checkpoint()
    assert latest is not None
    assert latest.read_text() == "first"
    assert {each.name for each in latest.parent.iterdir()} == {"a.pt", "latest"}
    assert [(report.step, report.checkpoint) for report in pool.read()] == [(4, "a.pt")]


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/a", "latest"])
def test_a_checkpoint_stays_in_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a checkpoint"), helios_task.save_checkpoint(name):
        pass


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("content", ["gone.pt", "", "../../secret", "/etc/passwd", "."])
def test_a_latest_that_is_none_is_none(content: str) -> None:
    (helios_task.checkpoint_folder() / "latest").write_text(content)
    assert helios_task.latest_checkpoint() is None


# torch.optim would import a compiler, which takes each of four processes 2 CPU s.
TRAINS = """
import sys, time, torch, helios_task
torch.set_num_threads(1)
torch.manual_seed(0)
weights, speed, rate = torch.randn(8), torch.zeros(8), helios_task.parameters()["lr"]
data, first = torch.randn(64, 8), 0
if (latest := helios_task.latest_checkpoint()) is not None:
    weights, speed, first = torch.load(latest)
print("starts at", first, flush=True)
for step in range(first, 40):
    weights = weights.detach().requires_grad_()
    loss = (data @ weights - data.sum(dim=1)).pow(2).mean()
    loss.backward()
    speed = 0.5 * speed + weights.grad
    weights = weights.detach() - rate * speed
    helios_task.report(step=step, progress=(step + 1) / 40, loss=loss)
    if step % 5 == 0:
        with helios_task.save_checkpoint("model.pt", step=step) as path:
            torch.save((weights, speed, step + 1), path)
    if step == STOP:
        print("waits", flush=True)
        while helios_task.requested() is None:
            time.sleep(0.01)
    if helios_task.requested() == "pause":
        sys.exit(0)
"""


def test_a_killed_and_paused_training_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    whole = program(TRAINS.replace("STOP", "-1"), tmp_path / "whole", **in_pool(tmp_path / "whole"))
    _, err = whole.communicate()
    assert whole.returncode == 0, err
    folder = tmp_path / "broken"
    killed = program(TRAINS.replace("STOP", "13"), folder, **in_pool(folder))
    assert killed.stdout is not None
    assert [killed.stdout.readline() for _ in range(2)] == ["starts at 0\n", "waits\n"]
    killed.kill()
    killed.communicate()
    paused = program(TRAINS.replace("STOP", "20"), folder, **in_pool(folder))
    assert paused.stdout is not None
    assert [paused.stdout.readline() for _ in range(2)] == ["starts at 11\n", "waits\n"]
    write_request(folder / "requests", TaskRequest.PAUSE)
    paused.communicate()
    assert paused.returncode == 0
    write_request(folder / "requests", None)
    last = program(TRAINS.replace("STOP", "-1"), folder, **in_pool(folder))
    assert last.communicate()[0] == "starts at 21\n"
    losses = [
        {report.step: report.metrics["loss"] for report in ReportReader(each / "report").read() if report.metrics}
        for each in (tmp_path / "whole", folder)
    ]
    assert list(losses[0]) == list(range(40))
    assert losses[0] == losses[1]


KILLED = """
import helios_task
with helios_task.save_checkpoint("a") as path:
    path.write_text("whole")
with helios_task.save_checkpoint("a") as path:
    with path.open("w") as file:
        file.write("half")
        file.flush()
        print("writes", flush=True)
        while True:
            pass
"""


@pytest.mark.usefixtures("pool")
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    started = program(KILLED, tmp_path, **in_pool(tmp_path))
    assert started.stdout is not None
    assert started.stdout.readline() == "writes\n"
    started.kill()
    started.communicate()
    latest = helios_task.latest_checkpoint()
    assert latest is not None
    assert latest.read_text() == "whole"
    with helios_task.save_checkpoint("a") as path, path.open("a") as file:
        file.write("new")
    assert latest.read_text() == "new"


# Callbacks. Their bases here stand in for the frameworks, which are too large for every run of the tests; the last two
# tests run the frameworks where they are installed (`pip install lightning transformers accelerate`).


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that hold nothing but the base classes."""
    for name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks", "transformers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lightning.pytorch.callbacks"].Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    sys.modules["transformers"].TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    yield
    for name in helios_task._CALLBACKS:
        vars(helios_task).pop(name, None)


def test_a_callback_without_its_framework_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning", "pytorch_lightning.callbacks", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("LightningCallback", "HuggingFaceCallback"):
        with pytest.raises(ImportError):
            getattr(helios_task, name)
    with pytest.raises(AttributeError):
        helios_task.no_such_name  # noqa: B018 - the access is what fails


class LightningTrainer:
    """What the callback uses of a trainer."""

    is_global_zero = True
    sanity_checking = False
    estimated_stepping_batches = 100

    def __init__(self) -> None:
        self.checkpoint_callbacks: list[Any] = []
        self.callback_metrics = {"val/loss": 0.5, "name": "x", "step": 9}
        self.global_step = 0

    def save_checkpoint(self, path: str) -> None:
        Path(path).write_text(str(self.global_step))


@pytest.mark.usefixtures("stand_ins")
def test_lightning_reports_saves_and_pauses(pool: ReportReader, tmp_path: Path) -> None:
    callback, trainer = helios_task.LightningCallback(every=2), LightningTrainer()
    callback.on_validation_end(trainer, None)
    write_request(tmp_path / "requests", TaskRequest.CHECKPOINT)
    for trainer.global_step in (1, 2, 3, 4):
        callback.on_train_batch_end(trainer, None, None, None, 0)
    latest = helios_task.latest_checkpoint()
    assert latest is not None
    assert latest.read_text() == "2"
    write_request(tmp_path / "requests", TaskRequest.PAUSE)
    trainer.global_step = 5
    callback.on_train_batch_end(trainer, None, None, None, 0)
    trainer.global_step = 6
    with pytest.raises(SystemExit) as left:
        callback.on_train_batch_end(trainer, None, None, None, 0)
    assert left.value.code == 0
    assert latest.read_text() == "6"
    found = [(report.step, dict(report.metrics), report.checkpoint) for report in pool.read() if report.answer is None]
    assert found == [(0, {"val/loss": 0.5}, None), (2, {}, "lightning.ckpt"), (6, {}, "lightning.ckpt")]


@pytest.mark.usefixtures("stand_ins", "pool")
def test_lightning_saves_now_and_then() -> None:
    callback, trainer = helios_task.LightningCallback(every=1, checkpoint_every_s=0.0), LightningTrainer()
    callback.on_train_batch_end(trainer, None, None, None, 0)
    assert helios_task.latest_checkpoint() is not None


@pytest.mark.usefixtures("stand_ins")
def test_what_lightning_saved_itself_is_the_latest_checkpoint(pool: ReportReader, tmp_path: Path) -> None:
    callback, trainer = helios_task.LightningCallback(every=1), LightningTrainer()
    saved = tmp_path / "epoch=0-step=4.ckpt"
    trainer.checkpoint_callbacks = [
        types.SimpleNamespace(last_model_path="", best_model_path=str(saved), best_k_models={str(saved): 0.5})
    ]
    callback.on_train_batch_end(trainer, None, None, None, 0)
    assert helios_task.latest_checkpoint() is None
    saved.write_text("4")
    for _ in range(2):
        callback.on_train_batch_end(trainer, None, None, None, 0)
    saved.unlink()  # as Lightning does when it has saved a better one
    callback.on_train_batch_end(trainer, None, None, None, 0)
    latest = helios_task.latest_checkpoint()
    assert latest is not None
    assert latest.read_text() == "4"
    assert [report.checkpoint for report in pool.read()] == ["lightning.ckpt"]


@pytest.mark.usefixtures("stand_ins")
def test_hugging_face_reports_saves_and_pauses(pool: ReportReader, tmp_path: Path) -> None:
    callback = helios_task.HuggingFaceCallback(every=2)
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=4, max_steps=8)
    control, args = types.SimpleNamespace(should_save=False), types.SimpleNamespace(output_dir=tmp_path / "checkpoints")
    callback.on_log(args, state, control, {"loss": 0.5, "note": "x"})
    callback.on_step_end(args, state, control)
    assert control.should_save is False
    write_request(tmp_path / "requests", TaskRequest.PAUSE)
    callback.on_step_end(args, state, control)
    assert control.should_save is True
    (helios_task.checkpoint_folder() / "checkpoint-4").mkdir()
    with pytest.raises(SystemExit):
        callback.on_save(args, state, control)
    assert helios_task.latest_checkpoint() == tmp_path / "checkpoints" / "checkpoint-4"
    first, answer, last = pool.read()
    assert (first.step, first.progress, first.metrics) == (4, 0.5, {"loss": 0.5})
    assert answer.answer is TaskRequest.PAUSE
    assert last.checkpoint == "checkpoint-4"
    write_request(tmp_path / "requests", TaskRequest.STOP)
    with pytest.raises(SystemExit):
        callback.on_step_end(args, state, control)


LIGHTNING = """
import torch, helios_task
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
trainer = pl.Trainer(max_epochs=4, callbacks=[helios_task.LightningCallback(every=5)], logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
trainer.fit(Model(), data, ckpt_path=helios_task.latest_checkpoint())
"""
HUGGING_FACE = """
import torch, helios_task
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).pow(2).mean()}

data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(64)]
arguments = TrainingArguments(output_dir=str(helios_task.checkpoint_folder()), num_train_epochs=4, logging_steps=5,
                              per_device_train_batch_size=8, report_to=[], use_cpu=True, save_strategy="no")
latest = helios_task.latest_checkpoint()
callback = helios_task.HuggingFaceCallback(every=5)
trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[callback])
trainer.train(resume_from_checkpoint=str(latest) if latest else None)
"""


@pytest.mark.parametrize(("framework", "text"), [("lightning", LIGHTNING), ("transformers", HUGGING_FACE)])
def test_the_framework_itself_pauses_and_goes_on(tmp_path: Path, framework: str, text: str) -> None:
    pytest.importorskip(framework)
    write_request(tmp_path / "requests", TaskRequest.PAUSE)
    done = program(text, tmp_path, **in_pool(tmp_path))
    _, err = done.communicate()
    assert done.returncode == 0, err
    write_request(tmp_path / "requests", None)
    reader = ReportReader(tmp_path / "report")
    found = reader.read()
    assert [report.step for report in found if report.checkpoint] == [5]
    assert all((report.step or 0) <= 5 for report in found)
    done = program(text, tmp_path, **in_pool(tmp_path))
    _, err = done.communicate()
    assert done.returncode == 0, err
    last: list[Any] = [report.step for report in reader.read() if report.metrics]
    assert min(last) > 5
    assert max(last) == 32


KILLS_ITSELF = """
import os, pathlib, signal, sys, torch, helios_task
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def on_train_start(self):
        print("starts at", self.global_step, flush=True)
    def training_step(self, batch, _):
        if self.global_step == 13 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), float(sys.argv[1]))

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
own = ModelCheckpoint(dirpath="saved", every_n_train_steps=4)
callback = helios_task.LightningCallback(every=1)
trainer = pl.Trainer(max_epochs=4, callbacks=[own, callback], logger=False, enable_progress_bar=False,
                     accelerator="cpu")
trainer.fit(Model(), data, ckpt_path=helios_task.latest_checkpoint())
print("ends at", trainer.global_step)
"""


def test_a_killed_trial_of_lightning_goes_on_amid_its_epoch(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "helios_task.py").write_text(SOURCE)
    (tmp_path / "train.py").write_text(KILLS_ITSELF)
    path = tmp_path / "sweep.toml"
    path.write_text(f'command = "{sys.executable} train.py {{lr}}"\n[parameters]\nlr = [0.01]\n')
    result = run_pool(path, kind="cpu")
    assert result.counts == {"finished": 1}
    log = (tmp_path / "sweep.pool/trials/00000/log.txt").read_text()
    said = [line for line in log.splitlines() if line.startswith(("starts", "ends"))]
    assert said == ["starts at 0", "starts at 12", "ends at 32"]


# A job of Slurm with a target.

COMMENT = "mine helios:target=acc>=0.9,0.95;yield=USR2 too"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of Slurm that keep a comment in a file, and count how often it is read."""
    comment = tmp_path / "comment"
    comment.write_text(COMMENT + "\n")
    for name, text in {
        "squeue": f"echo >>{tmp_path}/reads; cat {comment}",
        "scontrol": f'[ "$2" = jobid=7 ] && echo "${{3#comment=}}" >{comment}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return comment


def test_a_comment_says_where_the_program_stands(slurm: Path) -> None:
    helios_task.report(step=3, acc=0.91)
    assert slurm.read_text() == "mine helios:target=acc>=0.9,0.95;yield=USR2;at=0.91,step=3 too\n"


def test_a_comment_rounds_no_value_up_to_the_target(slurm: Path) -> None:
    helios_task.report(step=3, acc=0.89999999)
    assert ";at=0.89999999,step=3 " in slurm.read_text()


def test_a_comment_changes_seldom_but_at_each_target_and_checkpoint(slurm: Path) -> None:
    for step, acc in enumerate((0.1, 0.2, 0.92, 0.93, 0.94, 0.96, 0.97)):
        helios_task.report(step=step, acc=acc)
    assert ";at=0.96,step=5 " in slurm.read_text()
    assert (slurm.parent / "reads").read_text().count("\n") == 3
    helios_task.report(checkpoint="last")
    assert re.search(r";at=0.97,checkpoint=\d{10},step=6 ", slurm.read_text())


def test_what_the_owner_takes_out_of_the_comment_stays_out(slurm: Path) -> None:
    helios_task.report(step=1, acc=0.91)
    slurm.write_text("helios:target=acc>=0.9;at=0.91\n")
    helios_task.report(step=2, checkpoint="last")
    assert "yield" not in slurm.read_text() and "checkpoint=" in slurm.read_text()


def test_a_job_without_a_target_is_looked_at_once(slurm: Path) -> None:
    slurm.write_text("mine\n")
    for step in range(3):
        helios_task.report(step=step, acc=0.99, checkpoint="last")
    assert (slurm.read_text(), (slurm.parent / "reads").read_text()) == ("mine\n", "\n")


@pytest.mark.parametrize("variable", ["HELIOS_REPORT", "RANK"])
def test_a_pool_and_a_second_process_leave_the_comment(
    slurm: Path, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1" if variable == "RANK" else str(tmp_path / "report"))
    helios_task.report(step=3, acc=0.91)
    assert slurm.read_text() == COMMENT + "\n"


def test_a_slurm_that_refuses_does_not_disturb_the_program(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm.parent / "scontrol").write_text("#!/bin/sh\necho Access denied >&2\nexit 1\n")
    for _ in range(5):
        helios_task.report(step=3, acc=0.91, checkpoint="last")
    assert capsys.readouterr().err.count("Slurm could not be told, and is tried later: Access denied") == 1


def test_a_checkpoint_that_a_requeue_would_not_find_is_not_told(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with helios_task.save_checkpoint("model.pt", step=3) as path:
        path.write_text("x")
    assert "checkpoint=" not in slurm.read_text()
    assert "set HELIOS_CHECKPOINTS" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["squeue", "scontrol"])
def test_a_slurm_that_fails_is_asked_again_a_minute_later(
    slurm: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e6]
    monkeypatch.setattr("helios_task.time.monotonic", lambda: now[0])
    works = (slurm.parent / program).read_text()
    (slurm.parent / program).write_text(f"#!/bin/sh\necho >>{slurm.parent}/asked\nexit 1\n")
    for step in range(20):
        helios_task.report(step=step, acc=0.1, checkpoint="last")
    assert (slurm.parent / "asked").read_text() == "\n"
    for _ in range(4):  # as where Slurm is upgraded
        now[0] += 1_000.0
        helios_task.report(step=20, acc=0.1)
    (slurm.parent / program).write_text(works)
    now[0] += 3_600.0
    helios_task.report(step=21, acc=0.91)
    assert ";at=0.91,checkpoint=" in slurm.read_text()


def test_a_value_that_is_no_number_is_not_told(slurm: Path) -> None:
    helios_task.report(step=3, acc=float("nan"))
    assert slurm.read_text() == COMMENT + "\n"


def test_the_second_signal_asks_once_for_a_checkpoint() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)}
    try:
        helios_task.watch_signals()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert [helios_task.requested(), helios_task.requested()] == ["checkpoint", None]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
