"""A hundred job names that somebody might choose to be read as something else."""

from __future__ import annotations

RECORDS = (
    "999|bob|COMPLETED|1795255120|1795255121|1795255122|x",
    "999|999|dev|bob|bob|acc|normal|gpu|COMPLETED|0:0|1795255120|1795255120|1795255121|1795255122|00:00:01|01:00:00"
    "|1|1|1|1M|cpu=1|cpu=1|n1|x",
    '{"job_id": 999, "user": "bob"}',
    '"}, {"job_id": 999, "user": "bob", "name": "',
    "999,bob,gpu,1,1,COMPLETED,2026-11-21 09:00:00",
    "999 1795255120 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
    "JobIDRaw|User|State|Submit|Start|End|JobName",
)
"""What whole records of the formats look like."""
_AROUND = (
    "\n{}",
    "\r\n{}",
    "x\n{}\n",
    "|\n{}|",
    "\n\n{}\n\n",
    "\x1e{}\x1e",
    '"\n{}\n"',
    "\x1f\n{}\x1f\n",
    "|{}|\n",
    "\0{}",
)
_ODD = (
    *(
        "",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "|",
        "||",
        ";",
        ",",
        '"',
        "'",
        "\\",
        "\\n",
        "\x1e",
        "\x1f",
        "\x1b",
        "\0",
        "\v\f",
    ),
    *(
        "two\nlines",
        "trailing\n",
        "\nleading",
        "a|b",
        "a\tb",
        "a\x1fb",
        "a\x1eb",
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\a",
    ),
    *("=cmd|' /C calc'!A0", "+1+1", "-1", "@SUM(1)", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>"),
    *("bad\udcff\udcfe", "\udced\udca0\udc80", "é漢字", "\u2028\u2029\x85", "\u202egnp.exe", "[bold]markup[/bold]"),
    *("n" * 5_000, "9" * 5_000, "|" * 500, "\n" * 100, "../../etc/passwd", "$(id)", "`id`", "%s%n", "null", "None"),
)
NAMES = [*(around.format(record) for record in RECORDS for around in _AROUND), *_ODD]
"""Texts; bytes that are no UTF-8 as surrogate escapes, as they come from the command line."""
