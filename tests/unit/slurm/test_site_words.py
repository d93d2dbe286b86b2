"""Each word of a site's files, by itself: which rule it is, what it means where it is not given, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from helios.errors import ConfigurationInvalid
from helios.model.slurm_site import UNTYPED, NodeGroup, PartitionRules, QosRules, Share, SlurmSite
from helios.slurm.site import read_site
from helios.slurm.site_conf import amount, length_s

NODES = "NodeName=n[1-2] CPUs=4 Gres=gpu:2\nPartitionName=gpu Nodes=n[1-2]\n"


def a_node(words: str) -> NodeGroup:
    (group,) = read_site(f"NodeName=n1 {words}\nPartitionName=p Nodes=n1\n").nodes
    return group


def a_partition(words: str, before: str = "") -> PartitionRules:
    (partition,) = read_site(f"{before}\nNodeName=n[1-3] CPUs=4 Feature=ib\nPartitionName=p {words}\n").partitions
    return partition


@pytest.mark.parametrize(
    ("word", "rule", "value"),
    [
        ("default_queue_depth=7", "default_queue_depth", 7),
        ("sched_interval=7", "sched_interval_s", 7),
        ("sched_min_interval=500000", "sched_min_interval_s", 0.5),
        ("partition_job_depth=7", "partition_job_depth", 7),
        ("batch_sched_delay=7", "batch_sched_delay_s", 7),
        ("sched_max_job_start=7", "sched_max_job_start", 7),
        ("bf_interval=7", "bf_interval_s", 7),
        ("bf_window=7", "bf_window_s", 420),
        ("bf_resolution=7", "bf_resolution_s", 7),
        ("bf_max_job_test=7", "bf_max_job_test", 7),
        ("max_job_bf=7", "bf_max_job_test", 7),
        ("bf_max_job_part=7", "bf_max_job_part", 7),
        ("bf_max_job_user=7", "bf_max_job_user", 7),
        ("bf_max_job_start=7", "bf_max_job_start", 7),
        ("bf_max_job_array_resv=7", "bf_max_job_array_resv", 7),
        ("defer", "defer", True),
        ("bf_continue", "bf_continue", True),
        ("BF_BUSY_NODES", "bf_busy_nodes", True),
        ("time_min_as_soft_limit", "time_min_is_soft", True),
    ],
)
def test_a_parameter_of_the_scheduler_is_one_rule_and_no_other(word: str, rule: str, value: Any) -> None:
    usual, found = read_site(NODES).scheduling, read_site(f"SchedulerParameters={word}\n{NODES}").scheduling
    names = usual.__slots__
    changed = {name: getattr(found, name) for name in names if getattr(found, name) != getattr(usual, name)}
    assert changed == {rule: value}


@pytest.mark.parametrize(
    ("word", "rule", "value"),
    [
        ("PriorityType=priority/basic", "multifactor", False),
        ("PriorityWeightAge=7", "age", 7),
        ("PriorityWeightFairshare=7", "fairshare", 7),
        ("PriorityWeightJobSize=7", "job_size", 7),
        ("PriorityWeightPartition=7", "partition", 7),
        ("PriorityWeightQOS=7", "qos", 7),
        ("PriorityWeightAssoc=7", "association", 7),
        ("PriorityWeightTRES=CPU=2,Mem=4G", "tres", {"cpu": 2.0, "mem": 4 / 1024}),
        ("PriorityMaxAge=1-0", "max_age_s", 86_400),
        ("PriorityDecayHalfLife=0", "decay_half_life_s", 0),
        ("PriorityDecayHalfLife=UNLIMITED", "decay_half_life_s", 0),
        ("PriorityCalcPeriod=10", "calc_period_s", 600),
        ("PriorityFavorSmall=yes", "favor_small", True),
        ("PriorityFavorSmall=1", "favor_small", True),
        ("PriorityFavorSmall=true", "favor_small", True),
    ],
)
def test_a_setting_of_priorities_is_one_rule_and_no_other(word: str, rule: str, value: Any) -> None:
    usual, found = read_site(NODES).priority, read_site(f"{word}\n{NODES}").priority
    names = usual.__slots__
    changed = {name: getattr(found, name) for name in names if getattr(found, name) != getattr(usual, name)}
    assert changed == {rule: value}


def test_flags_of_priorities_are_kept_and_fair_tree_is_the_rule() -> None:
    tree = {
        flags: read_site(f"PriorityFlags={flags}\n{NODES}").priority.fair_tree
        for flags in ("ACCRUE_ALWAYS", "no_fair_tree", "DEPTH_OBLIVIOUS")
    }
    assert tree == {"ACCRUE_ALWAYS": True, "no_fair_tree": False, "DEPTH_OBLIVIOUS": False}
    flags = read_site(f"PriorityFlags=NO_NORMAL_ALL,MAX_TRES\n{NODES}").priority.flags
    assert flags == ("MAX_TRES", "NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES")


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("", ("cons_tres", False, False)),
        ("SelectType=select/cons_res\nSelectTypeParameters=CR_Core", ("cons_res", False, False)),
        ("SelectType=select/linear\nSelectTypeParameters=CR_LLN,CR_Memory", ("linear", True, True)),
        ("SelectType=select/other", ("cons_tres", False, False)),
    ],
)
def test_how_nodes_are_chosen(words: str, chosen: tuple[str, bool, bool]) -> None:
    site = read_site(f"{words}\n{NODES}")
    assert (site.select, site.least_loaded, site.holds_memory) == chosen
    assert any("select/other" in note for note in site.notes) == ("other" in words)


def test_what_no_setting_says_is_what_slurm_does() -> None:
    site = read_site(NODES)
    usual = SlurmSite()
    assert (site.name, site.priority, site.scheduling) == ("slurm", usual.priority, usual.scheduling)
    assert (site.qos, site.shares, site.notes) == ((), (), ())
    assert not read_site(f"SchedulerType=sched/builtin\n{NODES}").scheduling.backfill
    assert read_site(f"Epilog=/etc/epilog\n{NODES}").scheduling.epilog
    assert read_site(f"Epilog[0]=/etc/epilog\n{NODES}").scheduling.epilog


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Licenses=matlab:4", "Line 1, Licenses=matlab:4"),
        ("SuspendTime=600", "Line 1, SuspendTime=600"),
        ("TopologyPlugin=topology/tree", "Line 1, TopologyPlugin=topology/tree"),
        ("TopologyPlugin=topology/flat", ""),
        ("PreemptType=preempt/none", ""),
        ("CompleteWait=0 sec", ""),
        ("MailProg=/bin/mail", ""),
        ("Oddity=4", "Oddity (line 1)"),
        ("SelectTypeParameters=CR_PACK_NODES", "CR_PACK_NODES"),
        ("SchedulerParameters=bf_max_time=3,max_rpc_cnt=9", ""),
        ("SchedulerParameters=odd=3,strange", "odd=3, strange"),
        ("DownNodes=n1", "Line 1: downnodes"),
        ("PriorityWeightQOS=5", "QOS has a weight"),
        ("MailProg=a\nMailProg=b", ""),
    ],
)
def test_a_setting_without_effect_on_the_replay_is_told_with_its_line(words: str, said: str) -> None:
    notes = read_site(f"{words}\n{NODES}").notes
    assert (len(notes) == 1 and said in notes[0]) if said else notes == ()


@pytest.mark.parametrize(
    ("words", "cpus"),
    [
        ("", 1),
        ("Procs=6", 6),
        ("CPUs=8 Procs=6", 8),
        ("Sockets=2 CoresPerSocket=3", 6),
        ("Sockets=2 CoresPerSocket=3 ThreadsPerCore=2", 12),
        ("Boards=2 SocketsPerBoard=3 CoresPerSocket=4", 24),
        ("SocketsPerBoard=3", 3),
        ("CPUs=8 CoreSpecCount=2", 6),
        ("CPUs=8 ThreadsPerCore=2 CoreSpecCount=2", 4),
        ("CPUs=8 CpuSpecList=0,2-4", 4),
        ("CPUs=2 CoreSpecCount=2", 1),
    ],
)
def test_the_cpus_of_a_node(words: str, cpus: int) -> None:
    assert a_node(words).cpus == cpus


def test_what_a_node_has_where_nothing_is_said_and_where_all_is() -> None:
    plain = a_node("CPUs=1")
    assert (plain.memory_mib, plain.weight, plain.features, dict(plain.gpus)) == (1, 1, (), {})
    full = a_node("RealMemory=9000 MemSpecLimit=1000 Weight=7 Features=a,b&c|d Gres=gpu:no_consume:a100:2,gpu,shard:4")
    assert (full.memory_mib, full.weight, full.features) == (8000, 7, ("a", "b", "c", "d"))
    assert dict(full.gpus) == {"a100": 2, UNTYPED: 1}
    assert a_node("RealMemory=10 MemSpecLimit=10").memory_mib == 1
    assert dict(a_node("Gres=gpu:a100:1K(S:0,1),gpu:a100:1").gpus) == {"a100": 1025}


@pytest.mark.parametrize(
    ("words", "rule", "value"),
    [
        ("MaxTime=60", "max_time_s", 3600),
        ("DefaultTime=30", "default_time_s", 1800),
        ("PriorityTier=4", "priority_tier", 4),
        ("PriorityJobFactor=4", "priority_job_factor", 4),
        ("Default=YES", "is_default", True),
        ("State=DRAIN", "is_up", False),
        ("QOS=night", "qos", "night"),
        ("OverSubscribe=EXCLUSIVE", "exclusive", True),
        ("Shared=exclusive", "exclusive", True),
        ("DefMemPerCPU=9", "def_mem_per_cpu_mib", 9),
        ("DefMemPerGPU=9", "def_mem_per_gpu_mib", 9),
        ("DefMemPerNode=9", "def_mem_per_node_mib", 9),
        ("TRESBillingWeights=CPU=2", "tres_billing", {"cpu": 2.0}),
    ],
)
def test_a_word_of_a_partition_is_one_rule_and_no_other(words: str, rule: str, value: Any) -> None:
    usual, found = a_partition("Nodes=n[1-3]"), a_partition(f"Nodes=n[1-3] {words}")
    names = usual.__slots__
    changed = {name: getattr(found, name) for name in names if getattr(found, name) != getattr(usual, name)}
    assert changed == {rule: value}


def test_nodes_and_memory_of_a_partition_in_other_words() -> None:
    assert a_partition("Nodes=n3,n1,n3").nodes == ("n1", "n3")
    assert a_partition("Feature=ib").nodes == ("n1", "n2", "n3")
    both = a_partition("Nodes=n1 Priority=6")
    assert (both.priority_tier, both.priority_job_factor) == (6, 6)
    assert a_partition("Nodes=n1 DefMemPerCPU=UNLIMITED").def_mem_per_cpu_mib == 0
    assert a_partition("Nodes=n1", before="DefMemPerNode=77").def_mem_per_node_mib == 77
    site = read_site(f"{NODES}PartitionName=more Nodes=n[1-5]\n")
    assert [note for note in site.notes if "more has 3 nodes" in note and note.rstrip(".").endswith("n3")]


def test_sinfo_in_columns_or_with_bars_gives_nodes_and_members() -> None:
    bars = (
        "NODELIST|PARTITION|CPUS|MEMORY|GRES|WEIGHT|AVAIL_FEATURES\n"
        "n1|gpu*|8|4096+|gpu:a100:2|5|ib\nn1|big|8|4096|gpu:a100:2|5|ib\nn2|big|4|10|(null)|1|(null)\n"
    )
    site = read_site("ClusterName=x\n", sinfo=bars)
    assert site.nodes == (
        NodeGroup(names=("n1",), cpus=8, memory_mib=4096, gpus={"a100": 2}, weight=5, features=("ib",)),
        NodeGroup(names=("n2",), cpus=4, memory_mib=10, gpus={}, weight=1, features=()),
    )
    assert [(part.name, part.nodes, part.is_default) for part in site.partitions] == [
        ("gpu", ("n1",), True),
        ("big", ("n1", "n2"), False),
    ]
    for head in ("FEATURES", "ACTIVE_FEATURES"):
        columns = f"NODELIST PARTITION CPUS {head}\n\nn1 gpu 8 ib\n"
        assert read_site("ClusterName=x\n", sinfo=columns).nodes[0].features == ("ib",)
    with pytest.raises(ConfigurationInvalid, match="NODELIST") as refused:
        read_site(NODES, sinfo="NODES CPUS\nn1 8\n")
    assert "sinfo -N" in refused.value.hint
    with pytest.raises(ConfigurationInvalid, match="sinfo, line 3"):
        read_site(NODES, sinfo="NODELIST CPUS\n\nn1 many\n")


def test_records_of_scontrol_say_how_many_nodes_were_unwell() -> None:
    node = "NodeName={} CPUEfctv=6 CPUTot=8 RealMemory=100 Gres=gpu:1 Weight=3 AvailableFeatures=ib State={}\n"
    shown = "".join(node.format(f"n{number}", state) for number, state in enumerate(("IDLE", "DOWN*", "IDLE+DRAIN")))
    shown += "   Partitions=gpu\n"
    site = read_site("ClusterName=x\n", sinfo=f"{shown}\nPartitionName=gpu Nodes=n[0-2] MaxTime=1:00:00 State=UP\n")
    assert site.nodes == (
        NodeGroup(names=("n0", "n1", "n2"), cpus=6, memory_mib=100, gpus={UNTYPED: 1}, weight=3, features=("ib",)),
    )
    assert [part.max_time_s for part in site.partitions] == [3600]
    assert [note[:2] for note in site.notes] == ["2 "]


def test_a_qos_in_either_spelling_of_its_columns() -> None:
    short = "Name|Priority|MaxTRESPU|MaxJobsPU|GrpTRES\nhigh|5|gres/gpu=2,cpu=1|3|gres/gpu=9\n"
    long = "name|priority|maxtresperuser|maxjobsperuser|grptres\nhigh|5|cpu=1,GRES/GPU=2|3|gres/gpu=9\n"
    rules = QosRules(name="high", priority=5, max_gpus_per_user=2, max_jobs_per_user=3, max_gpus=9)
    for text in (short, long):
        site = read_site(NODES, sacctmgr_qos=text)
        assert site.qos == (rules,)
        assert len([note for note in site.notes if "cpu=1 is left out" in note and "maxtrespu" in note]) == 1
    assert read_site(NODES, sacctmgr_qos="Name\nplain\n\n").qos == (QosRules(name="plain"),)
    assert read_site(NODES, sacctmgr_qos="").qos == ()
    for wrong, said in (
        ("Name|Priority\nx|much\n", "priority is 'much'"),
        ("Name|GrpTRES\nx|gres/gpu=a\n", "gres/gpu=a"),
    ):
        with pytest.raises(ConfigurationInvalid, match="qos, line 2") as refused:
            read_site(NODES, sacctmgr_qos=wrong)
        assert said in refused.value.message


def test_shares_are_read_with_parents_named_indented_or_not_told() -> None:
    named = "Cluster|Account|ParentName|User|Share|QOS|GrpJobs\nx|root||||normal|\nx|lab|root||5||7\nx|lab||ann|2||\n"
    site = read_site(f"ClusterName=x\n{NODES}", sacctmgr_assoc=named)
    assert site.shares == (
        Share(account="root", shares=1),
        Share(account="lab", parent="root", shares=5),
        Share(account="lab", user="ann", shares=2),
    )
    assert [note for note in site.notes if "association lab, " in note and "grpjobs=7" in note]
    flat = read_site(NODES, sacctmgr_assoc="Account|User|Share\nroot||1\nlab||5\n")
    assert flat.shares[1] == Share(account="lab", parent="root", shares=5)
    assert len([note for note in flat.notes if "sacctmgr show assoc tree" in note]) == 1
    assert read_site(NODES, sacctmgr_assoc="Account|User|Share\nroot||1\n").notes == ()
    one = read_site(NODES, sacctmgr_assoc="Account|User|Share|Partition\nroot||1|\n lab|ann|1|gpu\n")
    assert one.shares == (Share(account="root", shares=1),)
    assert [note for note in one.notes if "ann" in note]


def test_lengths_and_amounts_at_their_edges() -> None:
    assert [length_s(text) for text in ("0", "0:59", "-1", " 2-0 ", "1-1:1")] == [0, 59, None, 172_800, 90_060]
    for wrong in ("", "x", "1:2:3:4", "1-", "-5"):
        with pytest.raises(ValueError, match=wrong.strip() or "^$"):
            length_s(wrong)
    assert [amount(text) for text in ("8", "-1", "2k", "1M", "1g")] == [8, -1, 2048, 1024**2, 1024**3]


def test_comments_quotes_and_continued_lines_are_understood() -> None:
    text = f'ClusterName="x y" # a comment\nPriorityWeightAge=4 \\\n{NODES}MailProg=/bin/a\\#b\nPriorityWeightQOS=2 \\'
    site = read_site(text.replace("4 \\\n", "4\n"))
    assert (site.name, site.priority.age, site.priority.qos) == ("x y", 4, 2)
    with pytest.raises(ConfigurationInvalid, match=r"slurm.conf, line 2: priorityweightage=4 +NodeName"):
        read_site(text)


@pytest.mark.parametrize("nothing", ["", "NO", "none", "ALL", "0", "unlimited", "(null)", "N/A", "off"])
def test_a_word_that_means_nothing_is_not_said_to_be_left_out(nothing: str) -> None:
    for words in (f"PartitionName=more Nodes=n1 MaxNodes={nothing}", f"NodeName=n3 CPUs=1 Extra={nothing}"):
        assert read_site(f"{NODES}{words}\n").notes == ()
    assert len(read_site(f"{NODES}PartitionName=more Nodes=n1 MaxNodes=1{nothing}\n").notes) == 1
