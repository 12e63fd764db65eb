"""`busway config`: the settings in force and where each comes from, and an example of all of them."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

app = typer.Typer(help="The settings in force.", no_args_is_help=True, rich_markup_mode=None)

# Up to the last @, because a password may hold one, and the first : parts it from the user.
USERINFO = re.compile(r"(://[^:@/]*:).+@")
PARAMETER = re.compile(r"([?&]password=)[^&]+")
EXAMPLE_HEAD = """\
# Every setting of Busway, with its default. Uncomment what you change.
# Compose reads this file as `.env`; elsewhere name it: BUSWAY_ENV_FILE=.env
# The environment wins over the file. A name that is not a setting stops every process; an empty value is none.
"""


def masked(url: str) -> str:
    """The URL with stars for its password."""
    return PARAMETER.sub(r"\1****", USERINFO.sub(r"\1****@", url))


@app.command()
def show(
    sources: Annotated[bool, typer.Option(help="Also show where each value comes from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, sources included.")] = False,
) -> None:
    """Print every setting in force."""
    from shared.settings import load, rows

    table = [(name, masked(value), source) for name, value, source in rows(load())]
    if as_json:
        print(json.dumps({name: {"value": value, "source": source} for name, value, source in table}, indent=2))
        return
    widths = [max(len(row[column]) for row in table) for column in (0, 1)]
    for name, value, source in table:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}" if sources else f"{name}={value}")


@app.command()
def example() -> None:
    """Print a commented environment file with every setting and its default."""
    print(example_text(), end="")


def example_text() -> str:
    """What `.env.example` holds."""
    from shared.settings import Settings

    return EXAMPLE_HEAD + "".join(_entries(Settings, Settings.of({}), "BUSWAY_"))


def _entries(model: Any, values: Any, prefix: str) -> Iterator[str]:
    """The fields of a section, those that stand alone before those that are sections themselves."""
    groups: list[tuple[str, str, Any]] = []
    for field, spec in model.model_fields.items():
        name, value = prefix + field.upper(), getattr(values, field)
        if isinstance(value, dict):
            groups += [(f"{name}__{lane.upper()}__", f"Lane `{lane}`.", one) for lane, one in value.items()]
        elif hasattr(type(value), "model_fields"):
            groups.append((f"{name}__", type(value).__doc__ or "", value))
        else:
            yield f"\n# {spec.description}\n# {name}={_as_text(value)}\n"
    for name, title, section in groups:
        yield f"\n# --- {title.splitlines()[0]}\n"
        yield from _entries(type(section), section, name)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
