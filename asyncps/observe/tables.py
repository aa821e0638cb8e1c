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
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    moods: dict[int, str] = field(default_factory=dict)

    def add(self, *cells: object, mood: str = "") -> None:
        """Add a row; what cannot be printed (a peer may say anything) is replaced."""
        if mood:
            self.moods[len(self.rows)] = mood
        self.rows.append(tuple(printable(str(cell)) for cell in cells))


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


def rich_view(heading: str, tables: Sequence[Table]) -> Any:
    """Return everything as something that rich shows."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[Any] = [Text(printable(heading), style="bold")]
    for table in tables:
        if not table.rows:
            continue
        shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        for name in table.columns:
            shown.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left",
                             overflow="fold")
        for number, row in enumerate(table.rows):
            style = _STYLES[table.moods.get(number, "")]
            shown.add_row(*(Text(cell) for cell in row), style=style)
        parts.append(shown)
    return Group(*parts)
