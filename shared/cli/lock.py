"""One fleet to a data folder: a lock that ends with the last process that writes there."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import ConfigError

# After a kill -9 the broker of the fleet before may still be writing out its file.
LEFTOVER_S = 10
POLL_S = 0.05


@contextmanager
def hold(folder: Path) -> Iterator[int]:
    """The lock's descriptor; a child that inherits it holds the lock too. ConfigError if a fleet runs on the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write to the data folder {folder}: {error.strerror}") from error
    try:
        _take(fd, folder)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _take(fd: int, folder: Path) -> None:
    until = time.monotonic() + LEFTOVER_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode() or "0"
            if _is_alive(int(owner)):
                raise ConfigError(
                    f"`busway up` with pid {owner} runs on {folder}; stop it, or choose another folder with --data"
                ) from None
            if time.monotonic() > until:
                raise ConfigError(
                    f"the broker of an earlier `busway up` still writes to {folder}; stop the valkey-server there"
                ) from None
            time.sleep(POLL_S)
        else:
            return


def _is_alive(pid: int) -> bool:
    """0, nobody, counts as dead: who has just taken the lock writes its number at once."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
