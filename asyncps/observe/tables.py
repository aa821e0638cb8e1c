"""Tables for people: in colour on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Table:
    """A table of texts.

    Attributes:
        title: What it is about.
        columns: Their names; one that ends with ">" is aligned to the right.
        rows: One tuple of texts each.
        moods: By row number: "good", "warn" or "bad".
        spare: Names of the columns that a narrow terminal does without, in the order in which they
            go. A table that has some keeps each row on one line; others wrap long texts.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    moods: dict[int, str] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def add(self, *cells: object, mood: str = "") -> None:
        """Add a row; what cannot be printed (a peer may say anything) is replaced."""
        if mood:
            self.moods[len(self.rows)] = mood
        self.rows.append(tuple(printable(str(cell)) for cell in cells))


_BETWEEN = 2  # blanks between two columns
_SHORTEST = 8  # characters that are left of a text, at least

_STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "": ""}
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def size(count: float) -> str:
    """Return a number of bytes for people."""
    step = 0
    while count >= 1024 and step < len(_STEPS) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.0f} {_STEPS[step]}" if not step else f"{count:.1f} {_STEPS[step]}"


def span(seconds: float) -> str:
    """Return a time span for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def counted(count: int, word: str) -> str:
    """Return a number of things for people."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def plain(heading: str, tables: Sequence[Table]) -> str:
    """Return everything as aligned text; tables without rows are left out."""
    lines = [printable(heading)]
    for table in tables:
        if not table.rows:
            continue
        names = tuple(name.rstrip(">") for name in table.columns)
        grid = [names, *table.rows]
        widths = [max(len(row[at]) for row in grid) for at in range(len(names))]
        lines += ["", table.title]
        for row in grid:
            cells = (
                cell.rjust(width) if name.endswith(">") else cell.ljust(width)
                for name, cell, width in zip(table.columns, row, widths, strict=True)
            )
            lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def fitted(table: Table, width: int) -> Table:
    """Return a table for a terminal of some width: fewer columns, and then shorter texts.

    Args:
        table: With columns that can be spared; one without is returned as it is.
        width: In characters.
    """
    if not table.spare:
        return table
    names = [name.rstrip(">") for name in table.columns]
    widths = [max([len(name), *(len(row[at]) for row in table.rows)])
              for at, name in enumerate(names)]
    kept = list(range(len(names)))
    for name in table.spare:
        if _needed(widths, kept) > width:
            kept.remove(names.index(name))
    for at in sorted(kept, key=lambda at: -widths[at]):
        if (excess := _needed(widths, kept) - width) > 0 and not table.columns[at].endswith(">"):
            widths[at] = max(widths[at] - excess, min(widths[at], _SHORTEST))
    rows = [tuple(_shortened(row[at], widths[at]) for at in kept) for row in table.rows]
    return Table(table.title, tuple(table.columns[at] for at in kept), rows, table.moods,
                 table.spare)


def _needed(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[at] for at in kept) + _BETWEEN * (len(kept) - 1)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\u2026"


def rich_view(heading: str, tables: Sequence[Table], width: int) -> Any:
    """Return everything as something that rich shows on a terminal of some width."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[Any] = [Text(printable(heading), style="bold")]
    for whole in tables:
        if not whole.rows:
            continue
        table = fitted(whole, width)
        line = bool(table.spare)
        shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD,
                          show_edge=not line, pad_edge=not line, collapse_padding=line)
        for name in table.columns:
            shown.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left",
                             overflow="ellipsis" if line else "fold", no_wrap=line)
        for number, row in enumerate(table.rows):
            style = _STYLES[table.moods.get(number, "")]
            shown.add_row(*(Text(cell) for cell in row), style=style)
        parts.append(shown)
    return Group(*parts)
