"""What a job's comment says of its target."""

from __future__ import annotations

import pytest

from helios.model.targets import TargetJob, read_note

WHOLE = "helios:target=val_acc>=0.90,0.95;yield=B:USR2;at=0.91,step=120,checkpoint=1764"


def test_a_comment_says_target_signal_and_where_it_stands() -> None:
    note = read_note(f"my own words {WHOLE} and more")
    assert note is not None
    assert (note.signal, note.at, note.step, note.checkpoint_s, note.reached) == ("B:USR2", 0.91, 120, 1764, 1)
    assert str(note) == "val_acc 0.91 at step 120, past its first target (val_acc>=0.9,0.95)"


@pytest.mark.parametrize("comment", [None, "", "helios", "target=val_acc>=0.9"])
def test_other_comments_name_no_target(comment: str | None) -> None:
    assert read_note(comment) is None


@pytest.mark.parametrize(
    "comment",
    [
        "helios:target=",
        "helios:target=acc>0.9",
        "helios:target=acc>=nan",
        "helios:target=acc>=0.9,0.8",
        "helios:target=acc>=0.9;yield=KILL",
        "helios:target=acc>=0.9;yield=9",
        "helios:target=acc>=0.9;yields=USR1",
    ],
)
def test_what_is_not_understood_is_an_error(comment: str) -> None:
    with pytest.raises(ValueError, match=r"target|signal"):
        read_note(comment)


@pytest.mark.parametrize("at", ["nan", "inf", "", "1e999", "x", "0.9.9"])
def test_a_value_that_is_no_number_reaches_nothing(at: str) -> None:
    note = read_note(f"helios:target=acc>=0.9;at={at}")
    assert note is not None and note.at is None and note.reached == 0


@pytest.mark.parametrize("checkpoint", ["-1", "1e9", "99999999999999", "x"])
def test_a_checkpoint_that_is_no_time_is_none(checkpoint: str) -> None:
    note = read_note(f"helios:target=acc>=0.9;checkpoint={checkpoint}")
    assert note is not None and note.checkpoint_s == 0


def test_gpus_are_enough_for_a_job_of_the_partition_that_asks_for_less() -> None:
    job = TargetJob(job_id="1", partition="gpu", gpus=4, gpu_type="a100")
    others = (
        TargetJob(job_id="2", partition="gpu,debug", gpus=4),
        TargetJob(job_id="3", partition="debug", gpus=1),
        TargetJob(job_id="4", partition="gpu", gpus=5),
        TargetJob(job_id="5", partition="gpu", gpus=1, gpu_type="h100"),
        TargetJob(job_id="6", partition="gpu", gpus=4, nodes=2),
        TargetJob(job_id="7", partition="gpu", gpus=0),
    )
    assert [job.can_free(other) for other in others] == [True, False, False, False, False, False]
