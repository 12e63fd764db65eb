"""A clock that can be set, for one process and without privileges: a few calls of libc, laid before the real ones."""

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from shared.cli.valkey import Valkey

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset_us;

__attribute__((constructor)) static void find_offset(void) {
  const char *path = getenv("CLOCK_OFFSET");
  int file = path ? open(path, O_RDONLY) : -1;
  void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) offset_us = page;
}

int clock_gettime(clockid_t id, struct timespec *told) {
  int failed = syscall(SYS_clock_gettime, id, told);
  if (!failed && id == CLOCK_REALTIME && offset_us) {
    long long us = *offset_us + told->tv_nsec / 1000 + 1000000LL * told->tv_sec;
    told->tv_nsec = us % 1000000 * 1000 + told->tv_nsec % 1000;
    told->tv_sec = us / 1000000;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone) {
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  if (!failed && told) *told = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return failed;
}

time_t time(time_t *told) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (told) *told = now.tv_sec;
  return now.tv_sec;
}
"""


class Clock:
    """What to add to the time that a process is told. It takes Linux and a C compiler; elsewhere time just passes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        library, offset = folder / "clock.so", folder / "clock.offset"
        offset.write_bytes(bytes(8))
        with offset.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.command: list[str] = []
        """Put before a command, it gives its process this clock."""
        compiler = shutil.which("cc") if sys.platform.startswith("linux") else None
        if compiler is not None:
            build = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
            built = subprocess.run(build, input=SOURCE, text=True, capture_output=True)
            if built.returncode == 0:
                self.command = ["env", f"LD_PRELOAD={library}", f"CLOCK_OFFSET={offset}"]

    @property
    def can_be_set(self) -> bool:
        return bool(self.command)

    def step(self, seconds: float) -> None:
        """Forward, or back."""
        (offset,) = struct.unpack("q", self._offset)
        self._offset[:] = struct.pack("q", offset + round(seconds * 1e6))


class UnsteadyValkey(Valkey):
    """A server whose clock can be set."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder)
        self.clock = clock

    def _command(self) -> list[str]:
        return [*self.clock.command, *super()._command()]
