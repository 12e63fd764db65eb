"""How tables and times look in a terminal."""

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with columns as wide as they need to be."""
    cells = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def duration(ms: float) -> str:
    """A time in its largest fitting unit: 40 ms, 1.2 s, 59 s, 3 min, 5 h, 2 d."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    for unit_ms, unit, below in ((1000, "s", 120), (60_000, "min", 120), (3_600_000, "h", 48)):
        if ms < unit_ms * below:
            return f"{ms / unit_ms:.0f} {unit}"
    return f"{ms / 86_400_000:.0f} d"
