"""A fleet on one machine: what `busway up` starts, in which order, and how it stops."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.cli import listen, supervisor, try_out
from shared.cli.client import ChatError, Client, first_key
from shared.cli.config import masked
from shared.cli.lock import hold
from shared.cli.logs import tail
from shared.cli.model import fetch
from shared.cli.run import environment, module
from shared.cli.say import say, warn
from shared.cli.signals import Signals, StopAsked
from shared.cli.status import await_workers
from shared.cli.supervisor import Broken, Part, Program, Supervisor
from shared.cli.valkey import Valkey, refuse_unreachable
from shared.errors import BrokerUnavailable
from shared.settings import Settings, load, rows

TICK_S = 0.1
READY_WITHIN_S = 900  # a large model loads for minutes
GRACE_BEYOND_DRAIN_S = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    settings: Settings
    overrides: dict[str, str]
    """Variables that the children get over this process's own."""
    own_broker: bool
    workers: int
    gateways: int
    data: Path
    check: bool


def plan(overrides: dict[str, str], *, workers: int, gateways: int, data: Path, check: bool) -> Plan:
    """The plan that options and environment amount to; ConfigError if they are wrong."""
    settings = load(overrides)
    sources = {name: source for name, _, source in rows(settings)}
    children = dict(overrides)
    if workers > 1 and settings.worker.threads == 0:
        # Each would take all cores, and all would be slower than one.
        children["BUSWAY_WORKER__THREADS"] = str(max(1, cores() // workers))
    if gateways > 1:
        children["PROMETHEUS_MULTIPROC_DIR"] = str((data / "metrics").resolve())
    return Plan(
        settings=settings,
        overrides=children,
        own_broker=sources["BUSWAY_REDIS__URL"] == "default",
        workers=workers,
        gateways=gateways,
        data=data,
        check=check,
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(plan: Plan) -> int:
    """Run the fleet until it is told to stop; the exit status. ConfigError if it cannot start."""
    with Signals() as signals, hold(plan.data) as lock:
        return Fleet(plan, signals, lock).run()


class Fleet:
    """The running processes, and the order among them."""

    def __init__(self, plan: Plan, signals: Signals, lock: int) -> None:
        self._plan = plan
        self._signals = signals
        self._lock = lock
        self._supervisor = Supervisor(warn, on_death=self._forget_numbers)
        self._sockets: list[socket.socket] = []
        self._valkey: Valkey | None = None
        self._gateways: list[Program] = []
        self._workers: list[Program] = []

    def run(self) -> int:
        try:
            self._start()
            while True:
                self._signals.raise_if_asked()
                self._supervisor.tick()
                time.sleep(TICK_S)
        except StopAsked:
            return 0
        except Broken as broken:
            warn(str(broken))
            return broken.status
        except (ChatError, TimeoutError, BrokerUnavailable) as error:
            warn(f"it did not become ready: {error}\n{tail(self._workers[0].log)}")
            return 1
        finally:
            self._stop()

    def _start(self) -> None:
        settings = self._plan.settings
        host = settings.gateway.host
        self._sockets = listen.bind(host, settings.gateway.port, self._plan.gateways)
        url = listen.url_of(host, listen.port_of(self._sockets))
        if settings.worker.has_weights:
            say(f"model: {fetch(environment(self._plan.overrides), self._signals.raise_if_asked)}")
        broker = self._start_broker()
        self._start_programs({**self._plan.overrides, "BUSWAY_REDIS__URL": broker})
        say(f"gateway: {self._plan.gateways} on {url}")
        say(f"worker: {self._plan.workers} x {settings.worker.engine}, serving {settings.worker.model_name}")
        say(f"logs: {self._plan.data}/logs")
        key = first_key(settings)
        redis = settings.redis.model_copy(update={"url": broker})
        pids = [one.pid for one in self._workers]
        self._meanwhile(lambda: await_workers(redis, pids, READY_WITHIN_S))
        self._meanwhile(lambda: Client(url, key).await_ready(READY_WITHIN_S))
        if self._plan.check and settings.worker.generates:
            self._meanwhile(lambda: try_out.ask(Client(url, key), settings.worker.model_name))
        say(f"\n{try_out.curl(url, settings.worker, has_key=bool(key))}\n")
        say(f"ready {url}")

    def _start_broker(self) -> str:
        """The broker's URL, once it answers."""
        redis = self._plan.settings.redis
        if not self._plan.own_broker:
            refuse_unreachable(redis.url, shown=masked(redis.url), timeout_s=redis.timeout_s)
            say(f"broker: {masked(redis.url)}")
            return redis.url
        self._valkey = Valkey(
            self._plan.data / "valkey",
            keep_open=[self._lock],
            say=say,
            raise_if_asked=self._signals.raise_if_asked,
        )
        self._supervisor.start(self._valkey)
        say(f"broker: valkey, append-only file in {self._valkey.folder}")
        return self._valkey.url

    def _start_programs(self, overrides: dict[str, str]) -> None:
        logs = self._plan.data / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._plan.data / "metrics", ignore_errors=True)
        (self._plan.data / "metrics").mkdir()
        env = environment(overrides)
        for number, one in enumerate(self._sockets, start=1):
            one.listen(listen.BACKLOG)
            command, fd = module("gateway", "--fd", str(one.fileno())), one.fileno()
            name = f"gateway-{number}"
            self._gateways.append(Program(name, command, env=env, log=logs / f"{name}.log", pass_fds=[fd]))
        for number in range(1, self._plan.workers + 1):
            name = f"worker-{number}"
            self._workers.append(Program(name, module("worker"), env=env, log=logs / f"{name}.log"))
        for part in self._gateways:
            self._supervisor.start(part)
        for part in self._workers:
            self._supervisor.start(part, may_leave=True)

    def _forget_numbers(self, part: Part) -> None:
        """A gateway that was killed could not take what it had open off the sum that all gateways tell."""
        if part in self._gateways:
            for left in (self._plan.data / "metrics").glob(f"gauge_live*_{part.pid}.db"):
                left.unlink(missing_ok=True)

    def _meanwhile(self, work: Callable[[], None]) -> None:
        """Do it in a thread while the children and the signals are watched; raises what `work` raises."""
        raised: list[Exception] = []

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised again below, in the main thread
                raised.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        while thread.is_alive():
            self._signals.raise_if_asked()
            self._supervisor.refuse_deaths()
            thread.join(TICK_S)
        if raised:
            raise raised[0]

    def _stop(self) -> None:
        """Gateways first, so that nothing new comes in; then workers; the broker last, when nobody writes any more."""
        settings = self._plan.settings
        for one in self._sockets:
            one.close()  # else clients would queue at a socket that nobody accepts from
        if self._signals.asked:
            say("stopping: a second Ctrl-C does not wait for requests that run")
        for programs, drain_s in ((self._gateways, settings.gateway.drain_s), (self._workers, settings.worker.drain_s)):
            killed = supervisor.stop(
                programs,
                grace_s=drain_s + GRACE_BEYOND_DRAIN_S,
                is_forced=lambda: self._signals.asked > 1,
            )
            if killed:
                warn(f"killed: {', '.join(killed)}")
        if self._valkey is not None:
            self._valkey.stop()
            say(f"stopped: data kept in {self._valkey.folder}")
