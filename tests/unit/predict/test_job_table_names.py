"""Families of job names: who is kin, fixed at the first submission, from earlier names of the same user alone."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.model.records import LONGEST_NAME, split_words
from helios.predict.job_table import LEAST_LIKENESS, MOST_LEADERS, NO_FAMILY, JobNameFamilies
from tests.examples import examples

_names = st.lists(
    st.tuples(st.integers(-1, 2), st.one_of(st.none(), st.text("ab_1/.", max_size=8))), min_size=1, max_size=40
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_resnet50_lr0.1_seed3", "train resnet lr seed"),
        ("sweep-42/run_7.sh", "run"),
        ("/home/ada/jobs/Fit.slurm", "fit"),
        ("lr3e-4", "lr"),
        ("2024-05-01_eval", "eval"),
        ("eval_3f2504e0-4f89-11d3-9a0c-0305e82c3301", "eval"),
        ("eval_deadbeef12", "eval"),
        ("defaced_facade", "defaced facade"),
        ("Übung 7", "übung"),
        ("ee576bf57cda5d1fffa8da23674a0f8facd6feb8d606c0f98de93194f438c961", ""),
        ("12345", ""),
        ("", ""),
    ],
)
def test_words_are_what_is_left_without_path_extension_numbers_and_ids(name, words):
    assert split_words(name) == words


def test_a_name_joins_the_kin_that_its_user_had_before():
    families = JobNameFamilies()
    known = families.code(1, "train_resnet50_imagenet_baseline")
    families.code(1, "preprocess_kitti")
    assert families.code(1, "train_resnet101_imagenet_baselines_v2") == known
    assert families.code(1, "something_else_altogether") != known


@pytest.mark.parametrize(("one", "other", "kin"), [("aaaaa", "aaaab", True), ("aaaa", "aaab", False)])
def test_kin_have_four_fifths_of_their_letters_in_common(one, other, kin):
    families = JobNameFamilies()
    assert (families.code(1, one) == families.code(1, other)) == kin


def test_each_user_has_his_own_families():
    families = JobNameFamilies()
    assert families.code(1, "train") != families.code(2, "train")


def test_an_unknown_user_and_a_name_without_words_have_no_family():
    families = JobNameFamilies()
    assert [families.code(-1, "train"), families.code(1, None), families.code(1, "77")] == [NO_FAMILY] * 3


@settings(max_examples=examples(50))
@given(_names, st.integers(0, 40))
def test_later_names_change_no_family(jobs, cut):
    families, again = JobNameFamilies(), JobNameFamilies()
    whole = [families.code(user, name) for user, name in jobs]
    assert [again.code(user, name) for user, name in jobs[:cut]] == whole[:cut]


@settings(max_examples=examples(50))
@given(_names, st.integers(0, 40))
def test_many_at_once_are_as_one_by_one_also_in_two_parts(jobs, cut):
    one_by_one, at_once = JobNameFamilies(), JobNameFamilies()
    expected = [one_by_one.code(user, name) for user, name in jobs]
    got = [code for part in (jobs[:cut], jobs[cut:]) for code in in_bulk(at_once, part)]
    assert got == expected


@settings(max_examples=examples(50))
@given(_names)
def test_families_are_those_of_plain_leader_clustering(jobs):
    families, leaders, known = JobNameFamilies(), {}, {}
    for user, name in jobs:
        words = split_words(name or "")
        if user < 0 or not words:
            expected = NO_FAMILY
        elif (user, words) in known:
            expected = known[user, words]
        else:
            # All leaders of the user, the one joined longest ago first; of equally like ones the first.
            likeness = [(likeness_of(words, leader), -place) for place, (leader, _) in enumerate(leaders.get(user, []))]
            best = max(likeness, default=(0.0, 0))
            mine = leaders.setdefault(user, [])
            joined = mine.pop(-best[1]) if best[0] >= LEAST_LIKENESS else (words, sum(map(len, leaders.values())))
            mine.append(joined)
            expected = known[user, words] = joined[1]
        assert families.code(user, name) == expected


def test_only_recent_leaders_are_compared_and_known_names_keep_their_family():
    families, words = JobNameFamilies(), unlike(MOST_LEADERS + 1)
    first = families.code(0, words[0])
    others = [families.code(0, word) for word in words[1:]]
    assert families.code(0, f"{words[0]}x") not in [first, *others]
    assert families.code(0, words[0]) == first
    assert families.code(0, f"{words[-1]}x") == others[-1]


def test_a_leader_joined_lately_is_kept_before_others():
    families, words = JobNameFamilies(), unlike(MOST_LEADERS + 1)
    codes = [families.code(0, word) for word in words[:-1]]
    families.code(0, f"{words[0]}x")
    families.code(0, words[-1])
    assert families.code(0, f"{words[0]}y") == codes[0]
    assert families.code(0, f"{words[1]}y") != codes[1]


def test_of_an_endless_name_only_so_much_is_read():
    assert split_words("a" * 10_000_000) == "a" * LONGEST_NAME


def in_bulk(families, jobs):
    if not jobs:
        return []
    user, name = zip(*jobs, strict=True)
    code, names = pd.factorize(np.array(name, dtype=object))
    return families.codes(np.array(user, dtype=np.int32), code.astype(np.int32), list(names)).tolist()


def likeness_of(one, other):
    """Return 200 times the longest common subsequence by both lengths, by the textbook table."""
    table = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
    return 200 * table[-1, -1] / (len(one) + len(other))


def unlike(n):
    """Return ``n`` words of which none is kin of another."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [letters[number // 8] * 8 + letters[25 - number % 8] * 8 for number in range(n)]
