import pytest

from helios.units import in_number


@pytest.mark.parametrize(
    ("sentence", "of_one"),
    [
        ("jobs have no limit", "1 job has no limit"),
        ("jobs that hold no GPU were left out.", "1 job that holds no GPU was left out."),
        ("jobs are larger than their whole partition", "1 job is larger than its whole partition"),
        ("jobs without a partition go to the default one.", "1 job without a partition goes to the default one."),
        ("jobs start before their submission; they are kept", "1 job starts before its submission; it is kept"),
        ("jobs whose end is unknown, were left out.", "1 job whose end is unknown, was left out."),
        ("rows of a.csv make no sense and were left out", "1 row of a.csv makes no sense and was left out"),
    ],
)
def test_a_note_about_one_job_is_in_the_singular(sentence: str, of_one: str) -> None:
    assert in_number(1, sentence) == of_one
    assert in_number(1_200, sentence) == f"1,200 {sentence}"
