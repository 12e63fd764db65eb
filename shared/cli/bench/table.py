"""A result on the terminal."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from shared.cli.bench.result import QUANTILES, Result

BUSY = 0.8
LATE_MS = 10.0


def show(result: Result, console: Console) -> None:
    """Two tables, then what went wrong and what makes the figures doubtful."""
    plan = result.plan
    measured_s = max(0.0, result.over_s - plan.warmup_s)
    console.print(
        f"{plan.model} at {plan.url}: {measured_s:.1f} s after {plan.warmup_s:g} s of warm-up\n",
        _counts(result),
        "",
        _latencies(result),
        sep="\n",
        markup=False,
        highlight=False,
    )
    for remark in _remarks(result):
        console.print(remark, markup=False, highlight=False, soft_wrap=True)


def _remarks(result: Result) -> Iterator[str]:
    for name, lane in result.lanes.items():
        examples = lane.error_examples
        for kind, count in lane.errors.most_common():
            yield f"{name}: {count} x {kind}: {examples[kind]}"
        late = lane.send_delay.at(0.99)
        if late is not None and late > LATE_MS:
            yield f"{name}: 1 in 100 was sent {late:.0f} ms late or later; latencies count from the planned arrival"
    if result.client_cpu > BUSY:
        yield f"the client used {result.client_cpu:.0%} of a core: it may be what was measured"
    if result.is_interrupted:
        yield "interrupted: this is what was seen so far"


def _counts(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("lane", "requests", "errors", "unfinished", "tokens/s"):
        table.add_column(column, justify="left" if column == "lane" else "right")
    for name, lane in result.lanes.items():
        errors, rate = sum(lane.errors.values()), lane.tokens_per_s
        table.add_row(name, str(len(lane.samples)), str(errors), str(lane.unfinished), _number(rate))
    return table


def _latencies(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("lane", "ms", *QUANTILES, "max", "values"):
        table.add_column(column, justify="left" if column in ("lane", "ms") else "right")
    for name, lane in result.lanes.items():
        for label, spread in (("TTFT", lane.ttft), ("ITL", lane.itl), ("TPOT", lane.tpot), ("end to end", lane.e2e)):
            figures = spread.as_dict()
            numbers = [_number(figures[key]) for key in (*QUANTILES, "max")]
            table.add_row(name, label, *numbers, str(figures["count"]))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
