"""Rows in, a JSON object, a table and an SVG out."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fulgur.bench.plot import svg
from fulgur.bench.report import Report, Row, format_value, round_value


@pytest.fixture
def report() -> Report:
    report = Report("a bench", machine={"cpu": "a < b", "cores": 2}, notes=["left out: [nothing]"])
    report.add("x.tok_s", 1234.567, "tok/s", bar=1000)
    report.add("x.ratio", 0.123456, "x", bar=0.1, at_most=True)
    report.add("llama.tok_s", 600.0, "tok/s")
    return report


def test_json_has_machine_and_rows_only(report: Report, tmp_path: Path) -> None:
    report.write_json(tmp_path / "out.json")
    raw = json.loads((tmp_path / "out.json").read_text())
    assert raw == {
        "machine": {"cpu": "a < b", "cores": 2},
        "rows": [
            {"name": "x.tok_s", "value": 1234.6, "unit": "tok/s"},
            {"name": "x.ratio", "value": 0.1235, "unit": "x"},
            {"name": "llama.tok_s", "value": 600.0, "unit": "tok/s"},
        ],
    }


def test_bars() -> None:
    assert Row("a", 2.0, "x").passed is None
    assert Row("a", 2.0, "x", bar=2.0).passed is True
    assert Row("a", 1.9, "x", bar=2.0).passed is False
    assert Row("a", 2.1, "x", bar=2.0, at_most=True).passed is False


def test_table_shows_values_bars_and_notes(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    report.print()
    out = capsys.readouterr().out
    for text in ("x.tok_s", "1,235", "≥ 1,000", "≤ 0.1", "cpu a < b", "note: left out: [nothing]"):
        assert text in out


def test_svg_is_well_formed_and_complete(report: Report) -> None:
    root = ElementTree.fromstring(svg(report))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"x.tok_s", "x.ratio", "llama.tok_s", "1,235", "a < b, 2 cores"} <= set(texts)
    bars = [float(e.get("width", "0")) for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("rx")]
    assert len(bars) == 3 and all(0 < width <= 420 for width in bars)


def test_rounding() -> None:
    assert round_value(12345.678) == 12345.7 and round_value(0.00012345) == 0.0001234
    assert format_value(12345.6) == "12,346" and format_value(2.3456) == "2.35"
