"""What a site's files say of who starts when; recorded texts are those of a Slurm 22.05.8."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import ConfigurationInvalid
from helios.model.slurm_site import UNTYPED, Share, SlurmSite
from helios.slurm.site import read_site
from helios.slurm.site_conf import length_s

RECORDED = Path(__file__).parent / "recorded_site"
NODES = "NodeName=n[1-2] CPUs=4 Gres=gpu:2\nPartitionName=gpu Nodes=n[1-2]\n"
GPU_SITE = """
# A site, made up.
clustername=Frost
PriorityType=priority/multifactor
PriorityWeightAge=10 # of up to two weeks
priorityweightFAIRSHARE = 100000
PriorityWeightTRES=CPU=500,GRES/gpu=3000
PriorityMaxAge=14-0
PriorityDecayHalfLife=7-12:30
PriorityCalcPeriod=2:30
PriorityFavorSmall=YES
PriorityFlags=NO_FAIR_TREE,NO_NORMAL_ALL,INCR_ONLY
SchedulerParameters=bf_window=2880,bf_resolution=300,bf_interval=45,bf_continue,\\
bf_max_job_user=20,defer,sched_min_interval=2000000,time_min_as_soft_limit,bf_min_prio_reserve=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory,CR_LLN
DefMemPerCPU=2000
NodeName=DEFAULT Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 \\
    RealMemory=512000 Weight=20
NodeName=big[01-03],big10 Gres=gpu:h100:4,gpu:a100:2(S:0-1) Feature="nvlink,ib" MemSpecLimit=12000 CoreSpecCount=1
NodeName=small[1-2] Gres=gpu:4 Weight=10
NodeName=spare State=FUTURE
NodeSet=fast Nodes=big[01-02]
PartitionName=DEFAULT MaxTime=7-0 DefaultTime=60 PriorityTier=2
PartitionName=train Nodes=big[01-03],big10,spare Default=YES QOS=train OverSubscribe=EXCLUSIVE
PartitionName=short Nodes=fast,small1 MaxTime=4:00:00 PriorityTier=5 PriorityJobFactor=7 DefMemPerGPU=9000 \\
    TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=8
PartitionName=all Nodes=ALL MaxTime=INFINITE State=DOWN MaxNodes=2
PreemptType=preempt/partition_prio
Include /etc/slurm/more.conf
PriorityWeigthQOS=5
"""


def text(name: str) -> str:
    return (RECORDED / name).read_text()


def test_settings_are_read_in_any_case_over_several_lines_and_without_comments() -> None:
    site = read_site(GPU_SITE)
    assert site.name == "Frost"
    assert (site.priority.age, site.priority.fairshare) == (10, 100_000)
    assert site.priority.tres == {"cpu": 500.0, "gres/gpu": 3000.0}
    assert (site.priority.max_age_s, site.priority.decay_half_life_s) == (14 * 86_400, 7 * 86_400 + 45_000)
    assert site.priority.calc_period_s == 180  # kept in whole minutes, rounded up: seen on 22.05.8
    assert site.priority.favor_small
    assert not site.priority.fair_tree
    assert "NO_NORMAL_QOS" in site.priority.flags
    assert site.scheduling.bf_window_s == 2880 * 60
    assert (site.scheduling.bf_interval_s, site.scheduling.bf_resolution_s) == (45, 300)
    assert (site.scheduling.bf_max_job_user, site.scheduling.sched_min_interval_s) == (20, 2.0)
    assert site.scheduling.bf_continue
    assert site.scheduling.defer
    assert site.scheduling.time_min_is_soft
    assert (site.select, site.least_loaded, site.holds_memory) == ("cons_tres", True, True)


def test_an_empty_setting_means_what_it_means_to_slurm() -> None:
    site = read_site(NODES)
    empty = SlurmSite()
    assert site.priority == empty.priority
    assert site.scheduling == empty.scheduling


def test_nodes_have_what_can_be_allocated_of_them() -> None:
    big, *rest = read_site(GPU_SITE).nodes
    assert big.names == ("big01", "big02", "big03", "big10")
    assert (big.cpus, big.memory_mib, big.weight) == (62, 500_000, 20)
    assert big.gpus == {"h100": 4, "a100": 2}
    assert big.features == ("nvlink", "ib")
    assert [(group.names, group.cpus, group.gpus, group.weight) for group in rest] == [
        (("small1", "small2"), 64, {UNTYPED: 4}, 10)
    ]


def test_like_nodes_on_several_lines_are_one_sorted_group() -> None:
    lines = "".join(f"NodeName=n{number} CPUs=8 Gres=gpu:v100:2\n" for number in (10, 9, 11))
    groups = read_site(lines + "NodeName=n8 CPUs=2\nPartitionName=p Nodes=ALL\n").nodes
    assert [group.names for group in groups] == [("n8",), ("n9", "n10", "n11")]


def test_partitions_take_defaults_sets_and_all() -> None:
    train, short, everything = read_site(GPU_SITE).partitions
    assert (train.max_time_s, train.default_time_s, train.priority_tier) == (7 * 86_400, 3_600, 2)
    assert (train.is_default, train.exclusive, train.qos) == (True, True, "train")
    assert train.def_mem_per_cpu_mib == 2000
    assert short.nodes == ("big01", "big02", "small1")
    assert (short.max_time_s, short.priority_tier, short.priority_job_factor) == (14_400, 5, 7)
    assert short.def_mem_per_gpu_mib == 9000
    assert short.tres_billing == {"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 8.0}
    assert everything.max_time_s is None
    assert len(everything.nodes) == 6
    assert not everything.is_up


@pytest.mark.parametrize(
    "said",
    [
        "PreemptType=preempt/partition_prio: jobs are never preempted",
        "includes /etc/slurm/more.conf, which was not read",
        "PriorityWeigthQOS (line",
        "Of SchedulerParameters, not simulated: bf_min_prio_reserve=1000.",
        "Of PriorityFlags, not simulated: INCR_ONLY.",
        "Of partition all, not simulated: maxnodes=2.",
        "spare are left out: State=FUTURE",
        "Fair share has a weight, but no associations were given",
        "The limits of the partitions' QOS are not known (--qos): train.",
    ],
)
def test_what_is_not_simulated_is_said(said: str) -> None:
    assert any(said in note for note in read_site(GPU_SITE).notes), read_site(GPU_SITE).notes


def test_the_last_of_two_settings_counts_and_that_is_said() -> None:
    site = read_site(NODES + "PriorityWeightAge=1\nPriorityWeightAge=2\n")
    assert site.priority.age == 2
    assert any("PriorityWeightAge is set on line 3 and again on line 4" in note for note in site.notes)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("PriorityWeightAge=much", "slurm.conf, line 3: priorityweightage=much is not a whole number"),
        ("PartitionName=x Nodes=n1 MaxTime=1:2:3:4", "line 3: maxtime=1:2:3:4 is not a length of time"),
        ("NodeName=n[1-", "line 3, nodename"),
        ("SchedulerParameters=bf_interval=often", "line 3: SchedulerParameters has bf_interval=often"),
        ("PriorityWeightTRES=gpu", "line 3: priorityweighttres=gpu is not a list of weights"),
        ("NodeName=m1 Gres=gpu:a100:many", "line 3: gres=gpu:a100:many is not a list of GRES"),
        ("this is no configuration", "line 3: 'this is no configuration' is not Key=Value"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_line(wrong: str, said: str) -> None:
    with pytest.raises(ConfigurationInvalid) as refused:
        read_site(NODES + wrong)
    assert said in refused.value.message
    assert refused.value.hint


def test_a_site_without_nodes_is_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="no partition with nodes is described"):
        read_site("ClusterName=x\n")


def test_recorded_files_are_read_as_the_cluster_was_set_up() -> None:
    site = read_site(text("slurm.conf"), sacctmgr_qos=text("qos.txt"), sacctmgr_assoc=text("assoc.txt"))
    assert site.name == "fidelity"
    (nodes,) = site.nodes
    assert (nodes.names, nodes.cpus, nodes.memory_mib, nodes.gpus) == (
        ("n1", "n2", "n3", "n4"),
        32,
        256_000,
        {"a100": 8},
    )
    assert [(part.name, part.nodes, part.max_time_s, part.priority_job_factor) for part in site.partitions] == [
        ("gpu", ("n1", "n2", "n3", "n4"), 7_200, 1),
        ("debug", ("n3", "n4"), 1_800, 10),
    ]
    assert (site.priority.fairshare, site.priority.calc_period_s, site.priority.max_age_s) == (5_000, 60, 1_200)
    assert (site.scheduling.bf_interval_s, site.scheduling.bf_max_job_test) == (5, 200)
    assert {qos.name: qos.priority for qos in site.qos} == {"normal": 0, "high": 10}
    assert Share(account="vision", parent="root", shares=3) in site.shares
    assert Share(account="vision", user="alice", shares=2) in site.shares


def test_what_scontrol_shows_says_the_same_as_the_file() -> None:
    of_file = read_site(text("slurm.conf"))
    shown = read_site(text("show_config.txt"), sinfo=text("show_node.txt") + text("show_partition.txt"))
    assert replace(shown, notes=()) == replace(of_file, notes=())


def test_sinfo_says_which_nodes_there_are_and_the_file_the_rules() -> None:
    of_file = read_site(text("slurm.conf"))
    assert replace(read_site(text("slurm.conf"), sinfo=text("sinfo.txt")), notes=()) == replace(of_file, notes=())
    alone = read_site(text("show_config.txt"), sinfo=text("sinfo.txt"))
    assert [part.nodes for part in alone.partitions if part.name == "gpu"] == [("n1", "n2", "n3", "n4")]
    assert any("Of partition gpu only the nodes are known" in note for note in alone.notes)


def test_limits_of_a_qos_on_gpus_are_read_and_others_said() -> None:
    qos = (
        "Name|Priority|UsageFactor|GrpTRES|MaxTRESPU|MaxJobsPU|GrpJobs|Preempt\n"
        "train|100|0.5|gres/gpu=64|cpu=10,gres/gpu=8|4|9|scavenger\n"
    )
    site = read_site(NODES, sacctmgr_qos=qos)
    (train,) = site.qos
    assert (train.priority, train.usage_factor) == (100, 0.5)
    assert (train.max_gpus, train.max_gpus_per_user, train.max_jobs_per_user) == (64, 8, 4)
    assert "Of QOS train, not simulated: grpjobs=9, preempt=scavenger." in site.notes
    assert any("cpu=10 is left out" in note for note in site.notes)


def test_shares_below_shares_come_from_how_far_accounts_are_indented() -> None:
    tree = "Account|User|RawShares|RawUsage\nroot||0|9\n a||parent|5\n  b||3|5\n   b|ann|7|5\n c||2|4\n"
    site = read_site(NODES, sacctmgr_assoc=tree)
    assert site.shares == (
        Share(account="root", shares=0, usage_s=9),
        Share(account="a", parent="root", shares=None, usage_s=5),
        Share(account="b", parent="a", shares=3, usage_s=5),
        Share(account="b", user="ann", shares=7, usage_s=5),
        Share(account="c", parent="root", shares=2, usage_s=4),
    )


def test_the_shares_of_one_cluster_are_taken() -> None:
    both = "Cluster|Account|User|Share\nice|root||1\nice| a||5\nfrost|root||1\nfrost| a||6\n"
    site = read_site("ClusterName=frost\n" + NODES, sacctmgr_assoc=both)
    assert [share.shares for share in site.shares if share.account == "a"] == [6]
    with pytest.raises(ConfigurationInvalid, match="those of several clusters"):
        read_site("ClusterName=rime\n" + NODES, sacctmgr_assoc=both)


@pytest.mark.parametrize(("option", "command"), [("sacctmgr_qos", "show qos"), ("sacctmgr_assoc", "show assoc")])
def test_a_text_of_another_command_is_refused_with_the_right_one(option: str, command: str) -> None:
    with pytest.raises(ConfigurationInvalid) as refused:
        read_site(NODES, **{option: "some|other\nta|ble\n"})
    assert command in refused.value.hint


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 5_400),
        ("1:30", 90),
        ("2:00:00", 7_200),
        ("1-0", 86_400),
        ("1-2:30", 95_400),
        ("7-00:00:05", 604_805),
        ("UNLIMITED", None),
        ("INFINITE", None),
    ],
)
def test_lengths_are_read_as_the_manual_writes_them(written: str, seconds: int | None) -> None:
    assert length_s(written) == seconds


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_days_hours_minutes_seconds_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert length_s(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert length_s(f"{hours}:{minutes}:{seconds}") == total - days * 86_400
