"""Three plain names as top-level packages: guards against strangers of that name, and against holes in the wheel."""

import importlib
import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "worker", "shared")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in a wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("busway-*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_has_our_names(package):
    """PyPI has a `shared` and a `worker`; either would shadow ours in an editable install."""
    owners = importlib.metadata.packages_distributions().get(package, [])

    assert set(owners) <= {"busway"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_ours(package):
    found = Path(importlib.import_module(package).__file__)

    assert found.is_relative_to(ROOT)


def test_a_started_process_gets_ours_too(tmp_path):
    """Away from the checkout, past a folder of the same name: as `busway up` starts its children."""
    from shared.cli.run import environment

    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("raise ImportError('a stranger')")
    code = "import gateway, worker, shared; print(*(one.__file__ for one in (gateway, worker, shared)), sep='\\n')"
    command = [sys.executable, "-P", "-c", code]

    done = subprocess.run(command, cwd=tmp_path, env=environment({}), capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(ROOT) for line in done.stdout.splitlines())


def test_the_wheel_holds_exactly_our_packages(wheel):
    tops = {name.split("/")[0] for name in wheel}

    assert {one for one in tops if not one.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_misses_nothing(wheel):
    """Everything in the packages is in it: scripts, pages and markers too."""
    missing = [
        name
        for path in (one for package in PACKAGES for one in (ROOT / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        for name in [path.relative_to(ROOT).as_posix()]
        if name not in wheel
    ]

    assert missing == []
    assert "shared/py.typed" in wheel
    assert [name for name in wheel if name.endswith(".lua")]


def test_the_wheel_carries_the_licence(wheel):
    assert [name for name in wheel if name.endswith("/licenses/LICENSE")]
