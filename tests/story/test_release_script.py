"""What the kill switch that needs no Python reverts, leaves and follows, on programs that stand for Slurm's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.story.slurm_on_path import SUBMITTED, SlurmOnPath

SERVICE = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run it in another user's folder")


@pytest.fixture
def slurm(tmp_path: Path) -> SlurmOnPath:
    return SlurmOnPath(tmp_path)


def test_what_is_recorded_and_bears_the_mark_is_taken_back(slurm: SlurmOnPath) -> None:
    slurm.job("1", 4037)
    slurm.job("2", -2537, least="17:00")
    slurm.wrote("site_factor 1 @ 4037", "site_factor 2 @ 137", "site_factor 2 @ -2537", "time_min 2 @ 17")
    ran = slurm.release()
    assert ran.status == 0, ran.said
    assert slurm.updates == ["jobid=1,2 SiteFactor=0", "jobid=2 TimeMin=0"]


@pytest.mark.parametrize("listed", [0, 2])
def test_a_cut_queue_is_never_read_back_as_clean(slurm: SlurmOnPath, listed: int) -> None:
    for number in range(1, 6):
        slurm.job(str(number), 4037)
        slurm.wrote(f"site_factor {number} @ 4037")
    slurm.cut_squeue(listed)
    ran = slurm.release()
    assert ran.status == 1 and f"sprio names {5 - listed} pending jobs that squeue does not list" in ran.said


@pytest.mark.parametrize(
    "record",
    [
        "",
        "site_factor 1 @ 937",
        "site_factor 1 1 4037",
        "site_factor 2 @ 4037",
        "time_min 1 @ 4037",
        "site_factor 1 @ 4037 more",
        "site_factor 1 @ 4037;reboot",
        "site_factor 1 @ 403",
    ],
)
def test_a_mark_without_its_record_is_left_and_named(slurm: SlurmOnPath, record: str) -> None:
    slurm.job("1", 4037)
    slurm.wrote(*filter(None, [record]))
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (3, [])
    assert "1 values bear Helios' mark and are in no record: 1 (SiteFactor=4037); not touched" in ran.said


def test_a_minimum_of_the_user_is_left_and_named(slurm: SlurmOnPath) -> None:
    slurm.job("1", 0, least="17:00")
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (3, [])
    assert "1 (TimeMin=17)" in ran.said


def test_a_mark_without_its_record_beside_something_of_helios_is_1(slurm: SlurmOnPath) -> None:
    slurm.job("1", 537)
    slurm.job("2", "hidden")
    slurm.wrote("site_factor 2 @ 4037")
    assert slurm.release().status == 1


def test_a_place_that_an_admin_sets_between_reading_and_writing_stands(slurm: SlurmOnPath) -> None:
    slurm.job("1", 4037)
    slurm.job("2", 5037)
    slurm.wrote("site_factor 1 @ 4037", "site_factor 2 @ 5037")
    slurm.meanwhile("4037", "-500")
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (0, ["jobid=2 SiteFactor=0"]), ran.said


def test_a_task_that_leaves_its_array_meanwhile_is_not_written_with_it(slurm: SlurmOnPath) -> None:
    for task in (1, 2, 3):
        slurm.job("5", 4037, task=str(task))
    slurm.wrote("site_factor 5 @ 4037")
    rest = f"5|2|{SUBMITTED}|alice|gpu|1:00:00|0:00|100500|0|"
    slurm.meanwhile(f"5|{rest}4037", f"9|{rest}500")  # Slurm gives a task that an admin changes a number of its own
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (0, ["jobid=5_[1,3] SiteFactor=0"]), ran.said


def test_what_becomes_readable_before_a_hidden_value_is_written_is_looked_at(slurm: SlurmOnPath) -> None:
    slurm.job("1", "hidden")
    slurm.wrote("site_factor 1 @ 4037")
    slurm.meanwhile("hidden", "600")
    ran = slurm.release("--hidden")
    assert (ran.status, slurm.updates) == (0, []), ran.said


def test_a_users_own_minimum_is_nobodys_business_without_soft_limits(tmp_path: Path) -> None:
    slurm = SlurmOnPath(tmp_path, parameters="bf_interval=30")
    slurm.job("1", 0, least="17:00")
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (0, []), ran.said


def test_the_mark_alone_counts_only_when_asked_to(slurm: SlurmOnPath) -> None:
    slurm.job("1", 4037)
    assert slurm.release("--by-mark").status == 0
    assert slurm.updates == ["jobid=1 SiteFactor=0"]


def test_what_slurm_hides_is_left_and_named_if_helios_had_set_it(slurm: SlurmOnPath) -> None:
    slurm.job("1", "hidden")
    slurm.job("2", "hidden")
    slurm.wrote("site_factor 1 @ 4037")
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (1, [])
    assert "of 1 jobs that Helios had set Slurm hides the SiteFactor" in ran.said
    assert "1 (SiteFactor 4037)" in ran.said


def test_on_demand_only_what_helios_set_is_written_where_slurm_hides_it(slurm: SlurmOnPath) -> None:
    slurm.job("1", "hidden")
    slurm.job("2", "hidden")
    slurm.wrote("site_factor 1 @ 4037")
    ran = slurm.release("--hidden")
    assert (ran.status, slurm.updates) == (0, ["jobid=1 SiteFactor=0"]), ran.said
    assert "job 1: priority 100000, was 100500; Helios had written SiteFactor 4037" in ran.said
    assert slurm.release().status == 0, "its own record knows that it is gone"


def test_what_was_seen_to_be_gone_is_not_hidden(slurm: SlurmOnPath) -> None:
    slurm.job("1", "hidden")
    slurm.wrote("site_factor 1 @ 4037", "site_factor 1 @ 0")
    assert slurm.release().status == 0


def test_of_an_array_only_the_tasks_of_its_record_are_written(slurm: SlurmOnPath) -> None:
    for task in (1, 2, 3, 4, 6, 7, 8, 10, 11):
        slurm.job("5", 4037, task=str(task))
    slurm.job("9", 500, array="5", task="5")
    slurm.wrote("site_factor 5 @ 4037")
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (0, ["jobid=5_[1-4,6-8,10-11] SiteFactor=0"]), ran.said


def test_a_task_that_left_its_array_is_proved_by_the_arrays_record(slurm: SlurmOnPath) -> None:
    slurm.job("9", 4037, array="5", task="5")
    slurm.wrote("site_factor 5 @ 4037")
    assert slurm.release().status == 0
    assert slurm.updates == ["jobid=9 SiteFactor=0"]


def test_a_requeued_job_is_the_same_job(slurm: SlurmOnPath) -> None:
    slurm.job("1", 4037, restart="1", submitted=str(SUBMITTED + 60))
    slurm.wrote("site_factor 1 @ 4037")
    assert slurm.release().status == 0
    assert slurm.updates == ["jobid=1 SiteFactor=0"]


@pytest.mark.parametrize(
    ("row", "taken"),
    [
        ("{0} - site_factor alice gpu * 4037", True),
        ("{0} - site_factor * gpu * 4037", True),
        ("{0} {1} site_factor alice gpu * 4037", True),
        ("{1} - site_factor alice gpu * 4037", False),
        ("1 2 site_factor alice gpu * 4037", False),
        ("{0} - site_factor bob gpu * 4037", False),
        ("{0} - site_factor alice cpu * 4037", False),
        ("{0} - site_factor alice gpu * 937", False),
    ],
)
def test_what_the_hook_wrote_is_proved_by_what_was_published(slurm: SlurmOnPath, row: str, taken: bool) -> None:
    slurm.job("1", 4037)
    (slurm.state / "hook").mkdir()
    (slurm.state / "hook" / "published").write_text(row.format(SUBMITTED - 9, SUBMITTED + 999) + "\n")
    assert (slurm.release().status == 0) is taken
    assert slurm.updates == (["jobid=1 SiteFactor=0"] if taken else [])


@pytest.mark.parametrize(("limit", "taken"), [("60", True), ("61", False)])
def test_a_minimum_of_the_hook_is_proved_by_the_time_limit_too(slurm: SlurmOnPath, limit: str, taken: bool) -> None:
    slurm.job("1", 0, least="17:00")
    (slurm.state / "hook").mkdir()
    (slurm.state / "hook" / "published").write_text(f"{SUBMITTED} - time_min alice gpu {limit} 17\n")
    assert (slurm.release().status == 0) is taken


def test_many_jobs_are_written_in_a_few_calls(slurm: SlurmOnPath) -> None:
    for number in range(450):
        slurm.job(str(1000 + number), 4037)
    slurm.wrote(*(f"site_factor {1000 + number} @ 4037" for number in range(450)))
    assert slurm.release().status == 0
    assert len(slurm.updates) == 8


@pytest.mark.parametrize("owner", [pytest.param(SERVICE, marks=as_root), None])
@pytest.mark.parametrize("name", ["PAUSED", "RELEASED"])
@pytest.mark.parametrize("is_there", [True, False])
def test_it_creates_and_empties_nothing_through_a_link(
    slurm: SlurmOnPath, owner: int | None, name: str, is_there: bool
) -> None:
    victim = slurm.folder / "victim"
    if is_there:
        victim.write_text("precious")
    (slurm.state / name).symlink_to(victim)
    if owner is not None:
        slurm.give_state_to(owner)
    slurm.job("1", 4037)
    slurm.wrote("site_factor 1 @ 4037")
    ran = slurm.release()
    assert ran.status == 1
    assert f"{name} is a link" in ran.said
    assert (victim.read_text() if victim.exists() else "") == ("precious" if is_there else "")
    assert slurm.updates == ["jobid=1 SiteFactor=0"], "Slurm's part goes on"


@as_root
def test_a_link_in_place_of_the_hooks_folder_leads_to_no_removal(slurm: SlurmOnPath) -> None:
    victim = slurm.folder / "victim"
    victim.mkdir()
    (victim / "table").write_text("precious")
    (slurm.state / "hook").symlink_to(victim)
    slurm.give_state_to(SERVICE)
    assert slurm.release().status == 1
    assert (victim / "table").read_text() == "precious"


@as_root
@pytest.mark.parametrize("how", ["link", "somebody else's"])
def test_a_record_that_is_a_link_or_somebody_elses_proves_nothing(slurm: SlurmOnPath, how: str) -> None:
    slurm.job("1", 4037)
    slurm.wrote("site_factor 1 @ 4037")
    if how == "link":
        (slurm.state / "jobs.undo").rename(slurm.state / "elsewhere")
        (slurm.state / "jobs.undo").symlink_to("elsewhere")
    else:
        os.chown(slurm.state / "jobs.undo", SERVICE + 1, SERVICE + 1)
    slurm.give_state_to(SERVICE)
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (1, [])
    assert "jobs.undo is a link, or somebody else's: it is not read" in ran.said


@as_root
def test_the_files_that_it_makes_in_the_services_folder_are_the_services(slurm: SlurmOnPath) -> None:
    slurm.job("1", 4037)
    slurm.wrote("site_factor 1 @ 4037")
    os.chown(slurm.state / "jobs.undo", SERVICE, SERVICE)
    slurm.give_state_to(SERVICE)
    ran = slurm.release()
    assert ran.status == 0, ran.said
    assert {(slurm.state / name).stat().st_uid for name in ("PAUSED", "RELEASED", "jobs.undo")} == {SERVICE}


def test_a_list_of_nodes_cannot_carry_more_than_a_list(slurm: SlurmOnPath) -> None:
    (slurm.state / "nodes.undo").write_text("keep_awake\tn1;reboot\nasleep\t-n1 state=down\n")
    assert "2 lines of" in slurm.release().said
    assert slurm.updates == []


def test_a_nodes_file_that_is_a_link_is_told_and_not_read(slurm: SlurmOnPath) -> None:
    (slurm.folder / "elsewhere").write_text("weight\tn1\t10\n")
    (slurm.state / "nodes.undo").symlink_to(slurm.folder / "elsewhere")
    ran = slurm.release()
    assert (ran.status, slurm.updates) == (1, [])
    assert "nodes.undo is a link, or somebody else's: it is not read" in ran.said


def test_a_pause_of_the_domain_of_nodes_follows_no_link(slurm: SlurmOnPath) -> None:
    power = slurm.folder / "state-power"
    power.mkdir()
    (power / "PAUSED").symlink_to(slurm.folder / "victim")
    assert slurm.release().status == 1
    assert not (slurm.folder / "victim").exists()


def test_a_link_in_place_of_the_hook_table_is_removed_alone(slurm: SlurmOnPath) -> None:
    victim = slurm.folder / "victim"
    victim.write_text("precious")
    (slurm.state / "hook").mkdir()
    (slurm.state / "hook" / "table").symlink_to(victim)
    assert slurm.release().status == 0
    assert victim.read_text() == "precious"
    assert not (slurm.state / "hook" / "table").is_symlink()
