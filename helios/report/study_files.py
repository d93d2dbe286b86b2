"""Files of a study, with data, vector figures, a table and sources."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from helios.errors import UsageError
from helios.metrics.study.figure_data import FigureData
from helios.private_files import make_folder, write_private
from helios.report.study_charts import draw_pdf
from helios.report.study_text import Statement

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    sign: f"\\{sign}" for sign in "&%$#_{}"
}
SOURCES = r"""@inproceedings{helios,
  author = {Hu, Qinghao and Sun, Peng and Yan, Shengen and Wen, Yonggang and Zhang, Tianwei},
  title = {Characterization and Prediction of Deep Learning Workloads in Large-Scale {GPU} Datacenters},
  booktitle = {SC '21},
  year = {2021},
  doi = {10.1145/3458817.3476223},
  note = {Data: HeliosData, CC-BY-4.0; HeliosArtifact, MIT}
}

@inproceedings{acme,
  author = {Hu, Qinghao and others},
  title = {Characterization of Large Language Model Development in the Datacenter},
  booktitle = {NSDI '24},
  year = {2024},
  note = {Data: AcmeTrace, CC-BY-4.0}
}

@inproceedings{philly,
  author = {Jeon, Myeongjae and Venkataraman, Shivaram and Phanishayee, Amar and Qian, Junjie and Xiao, Wencong
            and Yang, Fan},
  title = {Analysis of Large-Scale Multi-Tenant {GPU} Clusters for {DNN} Training Workloads},
  booktitle = {USENIX ATC '19},
  year = {2019},
  note = {Data: philly-traces, CC-BY-4.0}
}
"""


def write_files(folder: Path, found: Sequence[Statement], figures: Sequence[FigureData]) -> list[Path]:
    """Write statements, figures and sources to a folder, and return the files.

    Each figure is a CSV with a row for each point, and a vector PDF. Files of these names are replaced.

    Raises
    ------
    UsageError
        The folder cannot be written.
    """
    contents: dict[str, bytes] = {
        "statements.csv": _statements_csv(found),
        "study.tex": _latex(found),
        "sources.bib": SOURCES.encode(),
    }
    for figure in figures:
        if (drawn := draw_pdf(figure)) is not None:
            contents[f"{figure.key}.csv"] = _figure_csv(figure)
            contents[f"{figure.key}.pdf"] = drawn
    try:
        make_folder(folder)
        for name, content in contents.items():
            write_private(folder / name, content)
    except OSError as reason:
        raise UsageError(f"{folder} cannot be written: {reason}", hint="Choose another place: --out FOLDER") from reason
    return [folder / name for name in contents]


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def _statements_csv(found: Sequence[Statement]) -> bytes:
    names = ("number", "name", "value", "unit", "low", "high", "n", "coverage", "verdict", "command", "sentence")
    return _csv(names, ([getattr(one, name) for name in names] for one in found))


def _figure_csv(figure: FigureData) -> bytes:
    header = ("panel", "cluster", "series", "x", "x_unit", "y", "y_unit")
    rows = [
        (panel.title or figure.key, cluster, one.name, x, panel.x_unit, y, panel.y_unit)
        for panel in figure.panels
        for cluster, lines in (("here", panel.series), ("published", panel.beside))
        for one in lines
        for x, y in zip(one.x, one.y, strict=True)
    ]
    return _csv(header, rows)


def _latex(found: Sequence[Statement]) -> bytes:
    rows = [
        f"{one.number} & {latex(one.title)} & {latex(one.shown_value)} & {'--' if one.n is None else one.n} \\\\"
        for one in found
        if one.value is not None
    ]
    lines = [
        r"\begin{tabular}{rlrr}",
        r"\hline",
        r" & Statement & Value (95\,\% interval) & $n$ \\",
        r"\hline",
        *rows,
        r"\hline",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines).encode()


def latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(sign, sign) for sign in text)
