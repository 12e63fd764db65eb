"""Child processes that on Linux never outlive their parent. Elsewhere a parent that is killed leaves them behind."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO

PR_SET_PDEATHSIG = 1


def _dies_with_parent(number: int) -> Callable[[], None] | None:
    """Runs in the child before exec: the kernel sends it `number` when the thread that forked it is gone.

    None where there is no such kernel.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before we asked, so nothing would be sent
            os._exit(1)

    return ask


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    on_parent_death: int = signal.SIGKILL,
    output: IO[bytes] | int | None = None,
    errors: IO[bytes] | int | None = subprocess.STDOUT,
) -> "subprocess.Popen[bytes]":
    """Start a child in a session of its own: Ctrl-C reaches only us, and we stop it in order.

    Call it from the main thread: the kernel ties the child to the thread that forked it.
    """
    return subprocess.Popen(
        command,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=_dies_with_parent(on_parent_death),  # noqa: PLW1509 - it only makes system calls
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
    )


def stop(child: "subprocess.Popen[bytes]", *, grace_s: float) -> None:
    """SIGTERM, and SIGKILL if it is still there after `grace_s`."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()
