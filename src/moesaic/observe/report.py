"""Tables and pictures for the terminal: records side by side, and where each expert lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from moesaic.core.places import Space
from moesaic.core.routing import ExpertId
from moesaic.core.units import format_bytes, format_rate, format_seconds
from moesaic.observe.record import Quantity, RunRecord


class Cell(NamedTuple):
    """How a space is drawn: told apart by glyph alone, by colour as well where there is colour."""

    glyph: str
    plain: str  # for terminals that print ASCII only
    style: str
    legend: str


CELLS: Mapping[str, Cell] = {
    Space.DEVICE.value: Cell("█", "#", "bold green", "device"),
    Space.HOST.value: Cell("░", "-", "yellow", "host"),
    Space.DISK.value: Cell("·", ".", "dim blue", "disk"),
}
_GAP = 2


def expert_grid(
    residency: Mapping[ExpertId, str], num_layers: int, num_experts: int, width: int = 80, encoding: str = "utf-8"
) -> Text:
    """Layers x experts, one cell per expert by the space it lives in ("dev", "host", "disk"), and a legend.

    A layer wider than `width` folds; where layers are narrow, several stand side by side. An expert that
    `residency` does not name is blank, and a layer without any (a dense one) is left out.
    """
    can_draw = all(_encodes(cell.glyph, encoding) for cell in CELLS.values())
    label_width = len(f"L{num_layers - 1} ")
    layers = [n for n in range(num_layers) if any(ExpertId(n, e) in residency for e in range(num_experts))]
    per_line = _per_line(num_experts, width - label_width)
    block = label_width + per_line + _GAP
    abreast = max(1, (width + _GAP) // block)
    num_rows = -(-len(layers) // abreast)
    abreast = -(-len(layers) // num_rows) if num_rows else 1
    grid = Text(no_wrap=True)
    for row in range(num_rows):
        beside = layers[row::num_rows][:abreast]
        for start in range(0, num_experts, per_line):
            for position, layer in enumerate(beside):
                label = f"L{layer}" if start == 0 else ""
                grid.append(label.ljust(label_width), "dim")
                for expert in range(start, min(start + per_line, num_experts)):
                    _append(grid, residency.get(ExpertId(layer, expert)), can_draw)
                grid.append("\n" if position == len(beside) - 1 else " " * _GAP)
    grid.append_text(_legend(residency, can_draw))
    return grid


def comparison(records: Sequence[RunRecord], columns: Mapping[str, str]) -> Table:
    """One row a record: its mode, then the numbers that `columns` names, by heading. A column that no record has a
    number for is left out; a number that a record lacks is "-"."""
    table = _table()
    table.add_column("mode", no_wrap=True)
    shown = {heading: name for heading, name in columns.items() if any(name in r.numbers for r in records)}
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        cells = (_cell(heading, record.numbers.get(name)) for heading, name in shown.items())
        table.add_row(record.mode, *cells)
    return table


def _cell(heading: str, quantity: Quantity | None) -> str:
    """A heading that ends with the unit says it for the whole column."""
    if quantity is None:
        return "-"
    return _format(quantity).removesuffix(f" {quantity.unit}" if heading.endswith(quantity.unit) else "")


def quantities(numbers: Mapping[str, Quantity]) -> Table:
    """One row a number."""
    table = _table()
    table.show_header = False
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for name, quantity in numbers.items():
        table.add_row(name.replace("_", " "), _format(quantity))
    return table


def _table() -> Table:
    return Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)


def _format(quantity: Quantity) -> str:
    value, unit = quantity
    if unit == "B":
        return format_bytes(value)
    if unit == "B/s":
        return format_rate(value)
    if unit == "s":
        return format_seconds(value)
    if unit == "share":
        return f"{value:.1%}"
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return text if unit == "1" else f"{text} {unit}"


def _per_line(num_experts: int, room: int) -> int:
    """Experts on one line: all where they fit, else the largest power of two that does."""
    return num_experts if num_experts <= room else 1 << (max(room, 1).bit_length() - 1)


def _append(grid: Text, space: str | None, can_draw: bool) -> None:
    if space is None:
        grid.append(" ")
        return
    cell = CELLS[space]
    grid.append(cell.glyph if can_draw else cell.plain, cell.style)


def _legend(residency: Mapping[ExpertId, str], can_draw: bool) -> Text:
    legend = Text(no_wrap=True)
    for space, cell in CELLS.items():
        count = sum(where == space for where in residency.values())
        if count or space != Space.DISK.value:
            legend.append("  " if legend.plain else "")
            legend.append(cell.glyph if can_draw else cell.plain, cell.style)
            legend.append(f" {cell.legend} {count}")
    return legend


def _encodes(glyph: str, encoding: str) -> bool:
    try:
        glyph.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
