"""Services are found by their entry points, and built only from options that do."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from helios.errors import ServiceInvalid, ServiceUnknown, UsageError
from helios.services.qssf import Qssf
from helios.services.registry import POOL_GROUP, build, installed
from helios.training.services import build_for_pool

GOOD = """
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

class Colour(StrEnum):
    RED = "red"

class Good:
    '''Prefer nothing at all.

    More text.
    '''
    @dataclass(frozen=True, kw_only=True)
    class Options:
        gpus: int = 8
        share: float = 0.5
        names: tuple[str, ...] = ("a",)
        colour: Colour = Colour.RED
        on: bool = True

        def __post_init__(self):
            if self.gpus < 1:
                raise ValueError("gpus must be at least 1")

    every = timedelta(minutes=1)

    def __init__(self, options):
        self.options = options

    def decide(self, snapshot):
        return []
"""

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package with one service onto the path, as an installer would, and return the service's name."""

    def put(name: str, code: str, *, target: str = "Good", package: str = "", group: str = "helios.services") -> str:
        package = package or f"pack-{name}"
        folder = tmp_path / package
        module = f"{package.replace('-', '_')}_module"
        facts = folder / f"{package.replace('-', '_')}-1.2.dist-info"
        facts.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (facts / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{target}\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return name

    return put


def options_built(name: str, **options: Any) -> Any:
    return build(name, options).options  # type: ignore[attr-defined]  # because services here keep them


def test_helios_own_services_are_installed() -> None:
    found = installed()
    assert {"qssf", "soft_limits"} <= set(found)
    assert found["qssf"].target == "helios.services.qssf:Qssf"
    assert found["qssf"].package.startswith("helios-slurm ")
    assert (found["qssf"].requires_gain, found["soft_limits"].requires_gain) == ("", "soft_limits")
    assert not found["qssf"].broken


def test_services_for_pools_are_found_apart(install: Install) -> None:
    name = install("packs", GOOD, group=POOL_GROUP)
    assert name not in installed()
    assert (installed(POOL_GROUP)[name].domain, installed(POOL_GROUP)[name].broken) == (None, "")
    assert build_for_pool(name, {"gpus": 2}).options.gpus == 2  # type: ignore[attr-defined]  # as options_built
    with pytest.raises(ServiceUnknown, match="packs"):
        build(name, {})
    with pytest.raises(ServiceInvalid, match="no option 'cpus'"):
        build_for_pool(name, {"cpus": 2})


def test_a_service_is_built_with_its_defaults() -> None:
    service = build("qssf", {})
    assert isinstance(service, Qssf)
    assert service.options == Qssf.Options()
    assert service.every == timedelta(seconds=30)


def test_a_package_that_is_installed_is_found_and_described(install: Install) -> None:
    name = install("good", GOOD)
    listed = installed()[name]
    assert (listed.package, listed.summary, listed.broken) == ("pack-good 1.2", "Prefer nothing at all.", "")
    assert [str(option) for option in listed.options][:3] == [
        "gpus: int = 8",
        "share: float = 0.5",
        "names: tuple[str, ...] = ('a',)",
    ]


def test_options_as_a_file_holds_them_become_what_was_declared(install: Install) -> None:
    options = options_built(install("good", GOOD), gpus=2, share=1, names=["x", "ü"], colour="red", on=False)
    assert (options.gpus, options.share, options.names, options.on) == (2, 1.0, ("x", "ü"), False)
    assert options.colour.name == "RED"


def test_an_infinite_option_stays_infinite() -> None:
    assert options_built("qssf", promote_after_s=math.inf).promote_after_s == math.inf


def test_an_unknown_service_is_told_with_those_there_are() -> None:
    with pytest.raises(ServiceUnknown, match=r"(?s)'qsff'.*qssf, soft_limits"):
        build("qsff", {})


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    with pytest.raises(ServiceInvalid, match=r"(?s)'evry_s'.*every_s: int = 30;.*promote_after_s: float = 0.0"):
        build("qssf", {"evry_s": 60})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": "2"}, "gpus = '2'"),
        ({"gpus": True}, "gpus = True"),
        ({"gpus": 2.5}, "gpus = 2.5"),
        ({"share": "half"}, "share = 'half'"),
        ({"names": "a"}, "names = 'a'"),
        ({"names": ["a", 3]}, "names.1 = 3"),
        ({"colour": "blue"}, "colour = 'blue'"),
        ({"gpus": 0}, "gpus must be at least 1"),
        pytest.param({"gpus": object()}, "of no kind", id="no kind"),
        ({"gpus": 2, "on": "yes"}, "on = 'yes'"),
    ],
    ids=str,
)
def test_a_value_that_does_not_do_is_named_with_what_is_allowed(
    install: Install, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServiceInvalid) as refused:
        build(install("good", GOOD), options)
    assert said in refused.value.message
    assert "gpus: int = 8" in refused.value.hint
    assert isinstance(refused.value, UsageError)


BROKEN = {
    "does not import": ("import nothing_of_that_name", "Good", "nothing_of_that_name"),
    "has no such class": (GOOD, "Bad", "Bad"),
    "is a function": ("def Good(options): ...", "Good", "not a class"),
    "cannot decide": (GOOD.replace("def decide", "def decided"), "Good", "decide"),
    "has no options": (GOOD.replace("class Options", "class Settings"), "Good", "Options"),
    "has options that change": (GOOD.replace("frozen=True, ", ""), "Good", "frozen"),
    "has an option without a default": (GOOD.replace("gpus: int = 8", "gpus: int"), "Good", "gpus have no default"),
    "has an option of no type": (GOOD.replace("gpus: int = 8", "gpus: 'Nothing' = 8"), "Good", "cannot be checked"),
    "ends the process": ("raise SystemExit(1)", "Good", "SystemExit"),
}


@pytest.mark.parametrize(("code", "target", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_service_is_listed_with_its_flaw_and_stops_nobody(
    install: Install, code: str, target: str, said: str
) -> None:
    name = install("broken", code, target=target)
    found = installed()
    assert said in found[name].broken
    assert not found["qssf"].broken
    with pytest.raises(ServiceInvalid, match="broken"):
        build(name, {})
    assert isinstance(build("qssf", {}), Qssf)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("timedelta(minutes=1)", "60", "every = 60"),
        ("timedelta(minutes=1)", "timedelta(0)", "every"),
        ("self.options = options", "raise KeyError('boom')", "KeyError"),
        ("def __init__(self, options)", "def __init__(self)", "TypeError"),
    ],
)
def test_a_service_that_cannot_be_made_says_why(install: Install, before: str, after: str, said: str) -> None:
    name = install("good", GOOD.replace(before, after))
    with pytest.raises(ServiceInvalid, match=said):
        build(name, {})


def test_two_packages_that_offer_one_name_are_both_named(install: Install) -> None:
    install("good", GOOD, package="one")
    install("good", GOOD, package="two")
    with pytest.raises(ServiceInvalid, match=r"one 1.2|two 1.2"):
        build("good", {})
    assert "one 1.2" in installed()["good"].broken
    assert "two 1.2" in installed()["good"].broken


def test_a_stranger_cannot_take_the_name_of_helios_own_service(install: Install) -> None:
    install("qssf", GOOD)
    with pytest.raises(ServiceInvalid, match="Several packages"):
        build("qssf", {})
