from tests.unit.report.replays import a_run, a_verdict, a_what_if, an_oracle, qssf

HOUR = 3600
CLEARLY, LEVEL = (0.50, 0.55, 0.52, 0.48, 0.51), (0.98, 1.03, 1.00, 0.97, 1.02)


def test_the_headline_is_the_verdict_where_there_is_one() -> None:
    result = a_what_if(a_run([2 * HOUR] * 10), qssf([HOUR] * 10), verdict=a_verdict(CLEARLY, LEVEL))
    assert result.headline() == result.verdict.sentences()


def test_a_single_replay_is_called_no_evidence_and_nothing_more() -> None:
    (sentence,) = a_what_if(a_run([2 * HOUR] * 10), qssf([HOUR] * 10)).headline()
    assert sentence.startswith("A single replay is no evidence")


def test_without_waits_no_order_is_said_to_help() -> None:
    (sentence,) = a_what_if(a_run([0] * 10), qssf([0] * 10)).headline()
    assert "no order of the queue can change" in sentence


def test_the_live_order_is_shown_though_another_waits_shorter() -> None:
    live, impossible = qssf([HOUR] * 10), qssf([60] * 10, estimates="predicted")
    result = a_what_if(a_run([2 * HOUR] * 10), qssf([600] * 10, backfill="none"), impossible, live)
    assert result.proposal is live


def test_what_no_live_slurm_can_do_is_no_proposal() -> None:
    result = a_what_if(a_run([2 * HOUR] * 10), qssf([60] * 10, estimates="expected"), an_oracle([9] * 10))
    assert result.proposal is None
    assert [run.is_possible_live for run in result.runs] == [True, False, False]
    assert [len(runs) for runs in (result.feasible, result.impossible, result.oracles)] == [0, 1, 1]
