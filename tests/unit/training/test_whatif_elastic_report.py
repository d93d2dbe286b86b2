"""Tables and the headline of sweeps simulated with changing and with fixed sizes."""

from __future__ import annotations

import io

from rich.console import Console

from helios.training.whatif_elastic_report import DeviceSpan, ElasticWhatIf, SizesOutcome, elastic_whatif_table


def a_result(trials: int) -> ElasticWhatIf:
    """Return a what-if where the service doubles every second trial's time, in spans of an hour."""
    spans = [DeviceSpan(number, number * 3_600.0, (number + 1) * 3_600.0, 2, True) for number in range(trials)]
    ends = [(number + 1) * 3_600.0 for number in range(trials)]
    slower = [end * (2 if number % 2 else 0.1) for number, end in enumerate(ends)]
    outcomes = {
        rule: SizesOutcome(ends_s=each, changes=[0] * trials, slowdowns=[1.0] * trials, spans=spans)
        for rule, each in (("elastic", slower), ("fixed 16", ends))
    }
    names = [f"a-model-of-some-name:{number}" for number in range(trials)]
    return ElasticWhatIf(
        name="a.toml, b.toml", service="elastic", trials=names, gpus=256, nodes=32, rules=outcomes, notes=()
    )


def test_who_ends_later_is_told_first_in_the_headline() -> None:
    assert "2 of 4 trials end later" in a_result(4).headline()
    assert "+9 %" not in a_result(4).headline()
    assert [number for _, number in a_result(4).payers] == [3, 1]


def test_tables_fit_a_terminal() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(elastic_whatif_table(a_result(14)))
    rows = [line for line in console.export_text().splitlines() if "simulated" not in line and "Mean time" not in line]
    assert max(map(len, rows)) <= 80
