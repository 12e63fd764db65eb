"""`busway chat`: one question, its answer as it is made."""

from typing import Annotated

import typer

# A lane is asked for by the tier that OpenAI's clients know; other lanes by their own name.
TIERS = {"bulk": "flex", "interactive": "default"}


def chat(  # noqa: PLR0917 - typer passes them by name
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    lane: Annotated[str | None, typer.Option(help="interactive, bulk, or another lane of the fleet.")] = None,
    url: Annotated[
        str | None, typer.Option(help="The gateway. Default: this machine, the port in the settings.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the first that the gateway lists.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[
        float, typer.Option(help="0 is the likeliest answer, always; 1 the model's full breadth.")
    ] = 0.2,
) -> None:
    """Ask one question and print the answer as it comes."""
    from shared.cli.client import ChatError, Client, first_key
    from shared.settings import load

    settings = load()
    try:
        client = Client(url or f"http://127.0.0.1:{settings.gateway.port}", first_key(settings))
        for piece in client.chat(
            prompt,
            model=model or client.first_model(),
            max_tokens=max_tokens,
            temperature=temperature,
            service_tier=TIERS.get(lane, lane) if lane else None,
        ):
            print(piece, end="", flush=True)
    except ChatError as error:
        typer.echo(f"busway: {error}", err=True)
        raise typer.Exit(1) from error
    finally:
        print(flush=True)
