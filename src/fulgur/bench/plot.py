"""A report as one SVG: horizontal bars, a panel for each unit."""

from __future__ import annotations

from html import escape
from itertools import groupby

from fulgur.bench.report import Report, Row, format_value

_LABEL, _BAR, _LINE, _PAD = 380, 420, 22, 24


def svg(report: Report) -> str:
    """Bars within a panel share a scale that starts at zero; a tick marks a row's bar."""
    rows = sorted(report.rows, key=lambda row: row.unit)
    parts: list[str] = []
    y = _PAD + 14
    parts.append(_text(_PAD, y, report.title, size=16, weight="600"))
    y += 20
    about = f"{report.machine.get('cpu', '')}, {report.machine.get('cores', '?')} cores"
    parts.append(_text(_PAD, y, about, colour="#777"))
    y += 12
    for unit, panel in groupby(rows, key=lambda row: row.unit):
        group = list(panel)
        y += _LINE + 4
        parts.append(_text(_PAD, y, unit or "ratio", weight="600"))
        largest = max((max(row.value, row.bar or 0.0) for row in group), default=0.0) or 1.0
        for row in group:
            y += _LINE
            parts += _row(row, y, largest)
    width, height = _PAD * 2 + _LABEL + _BAR + 90, y + _PAD
    style = "font-family:system-ui,sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "\n".join(parts)
    return f'{head} style="{style}">\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'


def _row(row: Row, y: int, largest: float) -> list[str]:
    left = _PAD + _LABEL
    length = max(row.value, 0.0) / largest * _BAR
    colour = (
        "#c0392b" if row.passed is False else "#2f6fb5" if "llama" not in row.name or "ratio" in row.name else "#999"
    )
    parts = [
        _text(_PAD, y, row.name, size=12),
        f'<rect x="{left}" y="{y - 11}" width="{length:.1f}" height="14" rx="2" fill="{colour}"/>',
        _text(left + length + 6, y, format_value(row.value), size=12),
    ]
    if row.bar is not None:
        x = left + row.bar / largest * _BAR
        parts.append(f'<path d="M{x:.1f} {y - 14}v20" stroke="#222" stroke-width="1.5"/>')
    return parts


def _text(x: float, y: float, text: str, *, size: int = 13, weight: str = "400", colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
