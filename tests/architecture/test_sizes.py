"""Small files, small functions. An exception is written down with a reason, and may only shrink."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 300
FUNCTION_LINES = 40
FOLDERS = ("gateway", "worker", "shared", "tests")

# path: (lines, reason)
LONG_FILES: dict[str, tuple[int, str]] = {}
# path::function: (lines, reason)
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {
    "shared/cli/bench/command.py::bench": (61, "a parameter for each option of the command"),
}


def sources(*endings):
    return sorted(one for folder in FOLDERS for one in (ROOT / folder).rglob("*") if one.suffix in endings)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def functions(path):
    """(name, lines) of every function, its decorators and nested functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield f"{name_of(path)}::{node.name}", node.end_lineno - first + 1


@pytest.mark.parametrize("path", sources(".py", ".lua", ".html"), ids=name_of)
def test_a_file_is_short(path):
    allowed, _ = LONG_FILES.get(name_of(path), (FILE_LINES, ""))

    lines = len(path.read_text().splitlines())

    assert lines <= allowed, f"{name_of(path)} has {lines} lines; {allowed} are allowed"


@pytest.mark.parametrize("path", sources(".py"), ids=name_of)
def test_a_function_is_short(path):
    for name, lines in functions(path):
        allowed, _ = LONG_FUNCTIONS.get(name, (FUNCTION_LINES, ""))

        assert lines <= allowed, f"{name} has {lines} lines; {allowed} are allowed"


def test_exceptions_only_shrink():
    """An exception states today's number exactly, and is gone once it is not needed."""
    files = {name_of(path): len(path.read_text().splitlines()) for path in sources(".py", ".lua", ".html")}
    long = {name: lines for path in sources(".py") for name, lines in functions(path)}

    for measured, exceptions, bound in ((files, LONG_FILES, FILE_LINES), (long, LONG_FUNCTIONS, FUNCTION_LINES)):
        for name, (lines, reason) in exceptions.items():
            assert measured.get(name) == lines > bound, f"{name}: {lines} is allowed, {measured.get(name)} is true"
            assert reason, f"{name} needs a reason"


def test_nothing_large_is_committed():
    """Models, wheels and data stay out of git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")

    sizes = {name: (ROOT / name).stat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file()}

    assert [name for name, size in sizes.items() if size > 200_000] == []
