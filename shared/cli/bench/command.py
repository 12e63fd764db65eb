"""`busway bench`: a load on a server, and what its clients would have seen."""

from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

if TYPE_CHECKING:
    from shared.cli.bench.plan import Load, Plan, Range
    from shared.cli.bench.result import Result
    from shared.settings import Settings

DURATION_S = 30.0


class Arrivals(StrEnum):
    poisson = "poisson"
    constant = "constant"


class _Both(TypedDict):
    arrivals: Arrivals
    max_in_flight: int


class Endpoint(StrEnum):
    chat = "chat"
    completions = "completions"


Url = Annotated[str | None, typer.Option(help="The server. Default: this machine, the port in the settings.")]
Model = Annotated[str | None, typer.Option(help="Default: the first that the server lists.")]
ApiKey = Annotated[str | None, typer.Option(help="Default: without --url the first in the settings, else none.")]
EndpointOption = Annotated[Endpoint, typer.Option(help="What to ask for.")]
Rate = Annotated[float | None, typer.Option(help="Interactive arrivals a second; inf is all --requests at once.")]
Concurrency = Annotated[int | None, typer.Option(help="Interactive requests kept in flight, instead of --rate.")]
BulkRate = Annotated[float | None, typer.Option(help="Bulk arrivals a second.")]
BulkConcurrency = Annotated[int | None, typer.Option(help="Bulk requests kept in flight, instead of --bulk-rate.")]
ArrivalsOption = Annotated[Arrivals, typer.Option(help="How arrivals are spaced.")]
Prompt = Annotated[str, typer.Option(metavar="LOW-HIGH", help="Words of a prompt, about one token each.")]
Output = Annotated[str, typer.Option(metavar="LOW-HIGH", help="max_tokens of a request.")]
Duration = Annotated[float | None, typer.Option(help="Seconds. Default: 30, or until --requests have ended.")]
Requests = Annotated[int | None, typer.Option(help="End after so many interactive (without any, bulk) requests.")]
Warmup = Annotated[float, typer.Option(help="Seconds at the start that the figures leave out.")]
Timeout = Annotated[float, typer.Option(help="Seconds from a request's arrival until it counts as an error.")]
InFlight = Annotated[int, typer.Option(help="Of a lane at most; what arrives beyond is an error.")]
Temperature = Annotated[float | None, typer.Option(help="Default: the server's.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Ask for answers of exactly the length drawn.")]
Tier = Annotated[bool, typer.Option("--tier/--no-tier", help="Send service_tier; not every server knows it.")]
Seed = Annotated[int, typer.Option(help="Arrivals, prompts and lengths follow from it.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the figures here.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture (PNG) here.")]
FailOnErrors = Annotated[bool, typer.Option("--fail-on-errors", help="Exit status 1 if any request failed.")]


def bench(  # noqa: PLR0917 - typer passes them by name
    url: Url = None,
    model: Model = None,
    api_key: ApiKey = None,
    endpoint: EndpointOption = Endpoint.chat,
    rate: Rate = None,
    concurrency: Concurrency = None,
    bulk_rate: BulkRate = None,
    bulk_concurrency: BulkConcurrency = None,
    arrivals: ArrivalsOption = Arrivals.poisson,
    prompt_tokens: Prompt = "24-96",
    output_tokens: Output = "16-128",
    bulk_prompt_tokens: Prompt = "24-96",
    bulk_output_tokens: Output = "16-128",
    duration: Duration = None,
    requests: Requests = None,
    warmup: Warmup = 0,
    timeout: Timeout = 120,
    max_in_flight: InFlight = 1024,
    temperature: Temperature = None,
    ignore_eos: IgnoreEos = False,
    tier: Tier = True,
    seed: Seed = 0,
    json: Json = None,
    plot: Plot = None,
    fail_on_errors: FailOnErrors = False,
) -> None:
    """Load a server that speaks OpenAI's API, and tell its latencies, tokens a second and errors.

    Ctrl-C ends it early and reports what was seen. Exit status: 0; 1 if no request was answered; 2 wrong use.
    """
    from shared.cli.bench.plan import Plan, Range
    from shared.settings import load

    lengths = Range.of(prompt_tokens), Range.of(output_tokens)
    bulk_lengths = Range.of(bulk_prompt_tokens), Range.of(bulk_output_tokens)
    bulk_requests = requests if rate is None and concurrency is None else None  # the first lane's end the run
    both: _Both = {"arrivals": arrivals, "max_in_flight": max_in_flight}
    loads = {
        "interactive": _load(rate, concurrency, requests=requests, lengths=lengths, **both),
        "bulk": _load(bulk_rate, bulk_concurrency, requests=bulk_requests, lengths=bulk_lengths, **both),
    }
    settings = load()
    plan = Plan(
        url=url or f"http://127.0.0.1:{settings.gateway.port}",
        loads={lane: one for lane, one in loads.items() if one is not None},
        model=model,
        duration_s=DURATION_S if duration is None and requests is None else duration,
        warmup_s=warmup,
        endpoint=endpoint.value,
        temperature=temperature,
        ignore_eos=ignore_eos,
        send_tier=tier,
        timeout_s=timeout,
        seed=seed,
        api_key=_key(api_key, url, settings),
    )
    result = _run(plan, json, plot)
    failed = any(one.error is not None for one in result.samples)
    if not any(one.is_whole for one in result.samples) or (failed and fail_on_errors):
        raise typer.Exit(1)


def _load(
    rate: float | None,
    concurrency: int | None,
    *,
    arrivals: Arrivals,
    requests: int | None,
    lengths: "tuple[Range, Range]",
    max_in_flight: int,
) -> "Load | None":
    """A lane's load; None if neither a rate nor a concurrency was given."""
    from shared.cli.bench.plan import Load

    if rate is None and concurrency is None:
        return None
    return Load(
        rate=rate,
        concurrency=concurrency,
        arrivals=arrivals.value,
        requests=requests,
        prompt_tokens=lengths[0],
        output_tokens=lengths[1],
        max_in_flight=max_in_flight,
    )


def _key(given: str | None, url: str | None, settings: "Settings") -> str:
    """This environment's key goes to this machine's gateway only."""
    from shared.cli.client import first_key

    if given is not None:
        return given
    return first_key(settings) if url is None else ""


def _run(plan: "Plan", json: Path | None, picture: Path | None) -> "Result":
    """Run it, and tell it in all the ways that were asked for."""
    from rich.console import Console

    from shared.cli.bench import drive, plot, table
    from shared.cli.client import ChatError
    from shared.errors import ConfigError

    for file in (json, picture):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.parent}")
    if picture is not None:
        plot.refuse_without_matplotlib()
    try:
        result = drive.run(plan)
    except ChatError as error:
        typer.echo(f"busway: {error}", err=True)
        raise typer.Exit(1) from error
    if json is not None:
        json.write_text(dumps(result.as_dict(), indent=1) + "\n")
    if picture is not None:
        plot.save(result, picture)
    table.show(result, Console())
    return result
