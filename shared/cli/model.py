"""The model's files, before anything needs them: one process fetches, instead of every worker at once."""

import subprocess
from collections.abc import Callable, Mapping

from shared.cli.processes import spawn, stop
from shared.cli.run import module
from shared.cli.supervisor import Broken

POLL_S = 0.05
WEIGHTS = "worker.engines.weights"


def fetch(env: Mapping[str, str], raise_if_asked: Callable[[], None]) -> str:
    """Where the configured model is, fetched and converted if need be. Broken if it cannot be had.

    Its progress goes to our terminal. What `raise_if_asked` raises ends it.
    """
    child = spawn(module(WEIGHTS), env=env, output=subprocess.PIPE, errors=None)
    try:
        while child.poll() is None:
            raise_if_asked()
            try:
                child.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        stop(child, grace_s=2)
    assert child.stdout is not None, "we asked for a pipe"
    with child.stdout as said:
        folder = said.read().decode().strip()
    if child.returncode != 0:
        raise Broken("no model, see above", status=child.returncode if child.returncode > 0 else 1)
    return folder
