"""A service that keeps failing is suspended, and comes back after a while."""

from datetime import timedelta

from helios.actions import Result
from helios.control import ControllerState, ServiceSuspension
from helios.testing import NOON
from tests.unit.control.table import Says, Table, active, order, settings

DAY = timedelta(days=1)


def after_failures(number: int) -> ServiceSuspension:
    suspension = ServiceSuspension()
    for _ in range(number):
        suspension = suspension.after_a_failure("qssf", what="KeyError: 'x'", now=NOON)
    return suspension


def why_not(suspension: ServiceSuspension, after: timedelta = timedelta(0)) -> str:
    return suspension.why_not("qssf", now=NOON + after, failures=3)


def test_a_service_is_suspended_by_its_third_failure_in_a_row() -> None:
    assert [bool(why_not(after_failures(number))) for number in range(4)] == [False, False, False, True]
    assert why_not(after_failures(3)) == (
        "service qssf failed 3 times in a row and is suspended until 2026-01-06 12:00 UTC: KeyError: 'x'"
    )


def test_other_services_play_on() -> None:
    assert after_failures(3).why_not("ces", now=NOON, failures=3) == ""


def test_after_a_day_it_has_one_try() -> None:
    suspension = after_failures(3)
    assert why_not(suspension, DAY) == ""
    again = suspension.after_a_failure("qssf", what="again", now=NOON + DAY)
    assert why_not(again, DAY)


def test_a_person_can_send_it_back_at_once() -> None:
    assert why_not(after_failures(3).without("qssf")) == ""


def test_a_restart_does_not_free_it() -> None:
    restarted = ControllerState.from_json(ControllerState(suspension=after_failures(3)).to_json())
    assert restarted.suspension == after_failures(3)


def test_a_service_that_raises_is_written_down_and_the_others_are_asked() -> None:
    table = Table()
    table.submit("j1", "j2")
    broken = Says()
    broken.raises = ZeroDivisionError("division\nby zero")
    report = table.cycle(active(broken, name="broken"), active(Says(order(j1=0.5))))
    assert report.counts == {"broken": {Result.FAILED: 1}, "qssf": {Result.DONE: 1}}
    (line,) = table.lines(service="broken")
    assert line["outcome"] == "failed: ZeroDivisionError: division by zero"


def test_a_failing_service_keeps_its_values_until_it_is_suspended() -> None:
    table = Table(settings=settings(failures_to_suspend=2))
    table.submit("j1")
    service = Says(order(j1=0.5))
    table.cycle(active(service))
    service.raises = RuntimeError("out of luck")
    table.cycle(active(service))
    assert table.cluster.urgency_of("j1") > 0
    report = table.cycle(active(service))
    assert table.cluster.site_factor_of("j1") == 0
    assert any("service qssf failed 2 times in a row" in note for note in report.notes)
    table.cycle(active(service))
    assert service.asked == 3  # suspended: not asked any more


def test_an_answer_that_is_no_action_is_a_failure_of_the_service() -> None:
    table = Table()
    table.submit("j1")
    report = table.cycle(active(Says("prefer j1")))  # type: ignore[arg-type]
    assert report.counts == {"qssf": {Result.FAILED: 1}}
    assert "str is not an action" in table.lines(service="qssf")[0]["outcome"]


def test_a_service_that_answers_again_is_forgiven() -> None:
    table = Table()
    service = Says()
    service.raises = RuntimeError("once")
    table.cycle(active(service))
    service.raises = None
    assert table.cycle(active(service)).memory.suspension == ServiceSuspension()


def test_a_failure_of_one_service_does_not_forget_that_of_another() -> None:
    suspension = ServiceSuspension().after_a_failure("a", what="x", now=NOON).after_a_failure("b", what="y", now=NOON)
    assert suspension.why_not("a", now=NOON, failures=1) and suspension.why_not("b", now=NOON, failures=1)
