"""A result as a picture: how latencies are distributed, and tokens a second over the run."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from shared.cli.bench.result import Lane, Result
from shared.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 60
POINTS = 2000
"""Of a curve at most: a long run has millions of gaps."""


def refuse_without_matplotlib() -> None:
    """ConfigError if it is not installed, before a run is made for nothing."""
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which the extra `bench` brings: pip install 'busway[bench]'")


def save(result: Result, file: Path) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.subplots(2, 2)
    for axes, (title, name) in zip(
        grid.flat, {"time to first token": "ttft", "between tokens": "itl", "end to end": "e2e"}.items(), strict=False
    ):
        _distribution(axes, title, {lane: getattr(one, name).ordered for lane, one in result.lanes.items()})
    _throughput(grid[1][1], result.lanes, begin_s=result.plan.warmup_s, over_s=result.over_s)
    figure.suptitle(f"{result.plan.model} at {result.plan.url}", parse_math=False)
    figure.savefig(file, format="png", dpi=110)


def _distribution(axes: "Axes", title: str, lanes: dict[str, list[float]]) -> None:
    """Share of values up to x, for each lane."""
    for name, ordered in lanes.items():
        if ordered:
            last = len(ordered) - 1
            ranks = sorted({round(last * point / POINTS) for point in range(POINTS + 1)})
            axes.plot([ordered[rank] for rank in ranks], [(rank + 1) / len(ordered) for rank in ranks], label=name)
    axes.set(title=title, xlabel="ms", ylabel="share of values", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.set_xscale("symlog", linthresh=1)  # gaps may be 0
        axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
        axes.legend()


def _throughput(axes: "Axes", lanes: dict[str, Lane], *, begin_s: float, over_s: float) -> None:
    """Tokens a second in each of `BINS` parts of the run, warm-up included and shaded."""
    width = over_s / BINS
    for name, lane in lanes.items():
        tokens = [0.0] * BINS
        for at, count in lane.token_times():
            if width > 0 and at < over_s:
                tokens[min(BINS - 1, int(at / width))] += count / width
        axes.step([width * number for number in range(BINS)], tokens, where="post", label=name)
    if begin_s:
        axes.axvspan(0, min(begin_s, over_s), alpha=0.1, color="black", label="warm-up")
    axes.set(title="tokens a second", xlabel="s", ylabel="tokens/s", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
