"""How each kind of fault is done and undone. A fault is a generator: what it yields is how long it is left alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

from tests.chaos.arena import Arena, Side
from tests.chaos.plan import Fault
from tests.chaos.proxy import Proxy
from worker.cli.local_fleet import FleetError

Steps = Iterator[float]  # seconds until the next step; the fault has ended when there is none

GRACE_SECONDS: Final = 15.0  # then what was asked to end is killed, as a platform would
LOOK_SECONDS: Final = 0.1
CLOCK_SECONDS: Final = 600
START_SECONDS: Final = 90.0
LONGEST_LIE: Final = 4.0  # times its length, if nobody asks
LIES: Final = 2  # answers: most lies end a locale for good


def begin(arena: Arena, fault: Fault) -> tuple[str, Steps]:
    """Return what a fault is done to and its steps; nothing is done before the first is taken."""
    name = fault.kind.name
    if name.startswith(("worker", "beat")):
        names = arena.workers if name.startswith("worker") else arena.beats
        target = names[fault.number % len(names)]
        return target, _PROCESS[name.split(" ", 1)[1]](arena, target, fault)
    if " link " in name:
        side, _, how = name.partition(" link ")
        proxies = _proxies(arena, side, fault.number)
        target = proxies[0].name if len(proxies) == 1 else f"all-{side}"
        return target, _link(proxies, how, fault)
    if fault.kind.lane == "servers":
        return name.split(" ")[0], _SERVER[name](arena, fault)
    return name.split(" ")[0], _outside(arena, name, fault)


# --- workers and beats ----------------------------------------------------------------------------------------------


def _killed(arena: Arena, target: str, _fault: Fault) -> Steps:
    arena.doomed.add(target)
    arena.child(target).send(signal.SIGKILL)
    yield 0.0


def _stopped(arena: Arena, target: str, fault: Fault) -> Steps:
    child = arena.child(target)
    child.send(signal.SIGSTOP)
    yield fault.seconds
    child.send(signal.SIGCONT)


def _asked_to_end(arena: Arena, target: str, _fault: Fault) -> Steps:
    child = arena.child(target)
    arena.doomed.add(target)
    child.send(signal.SIGTERM)
    for _ in range(int(GRACE_SECONDS / LOOK_SECONDS)):
        if not child.is_running():
            return
        yield LOOK_SECONDS
    child.send(signal.SIGKILL)


def _wrong_clock(arena: Arena, target: str, fault: Fault) -> Steps:
    before = arena.starts(target)
    arena.restart_with_clock(target, CLOCK_SECONDS if fault.number % 2 else -CLOCK_SECONDS)
    for _ in range(int(START_SECONDS / LOOK_SECONDS)):
        if arena.starts(target) > before:
            break
        yield LOOK_SECONDS
    else:
        raise FleetError(f"{target} did not start with a wrong clock; read {arena.child(target).log}")
    yield fault.seconds
    arena.restart_with_clock(target, 0)


_PROCESS: Final[dict[str, Callable[[Arena, str, Fault], Steps]]] = {
    "killed": _killed,
    "stopped": _stopped,
    "stopped beyond its leases": _stopped,
    "asked to end": _asked_to_end,
    "clock ten minutes wrong": _wrong_clock,
}

# --- Redis and PostgreSQL -------------------------------------------------------------------------------------------


def _redis_flushed(arena: Arena, _fault: Fault) -> Steps:
    with arena.fleet.broker_client(socket_timeout=START_SECONDS, socket_connect_timeout=START_SECONDS) as client:
        client.flushall()
    yield 0.0


def _redis_killed(arena: Arena, _fault: Fault) -> Steps:
    arena.child("broker").kill()
    arena.start_broker()
    yield 0.0


def _redis_away(arena: Arena, fault: Fault) -> Steps:
    broker = arena.child("broker")
    broker.was_asked = True  # the supervisor must not start it before its time
    broker.kill()
    yield fault.seconds
    arena.start_broker()


def _redis_frozen(arena: Arena, fault: Fault) -> Steps:
    broker = arena.child("broker")
    broker.send(signal.SIGSTOP)
    yield fault.seconds
    broker.send(signal.SIGCONT)


def _postgres_connections_killed(arena: Arena, _fault: Fault) -> Steps:
    assert arena.postgres is not None
    with psycopg.connect(arena.postgres.url.replace("+psycopg", ""), autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    yield 0.0


def _postgres_restarted(arena: Arena, fault: Fault) -> Steps:
    assert arena.postgres is not None
    arena.postgres.crash()
    yield fault.seconds
    arena.postgres.start()


_SERVER: Final[dict[str, Callable[[Arena, Fault], Steps]]] = {
    "Redis flushed": _redis_flushed,
    "Redis killed and restarted": _redis_killed,
    "Redis away for 20 s": _redis_away,
    "Redis frozen for 20 s": _redis_frozen,
    "PostgreSQL connections killed": _postgres_connections_killed,
    "PostgreSQL restarted": _postgres_restarted,
}

# --- links ----------------------------------------------------------------------------------------------------------


def _proxies(arena: Arena, side: str, number: int) -> list[Proxy]:
    """Return the link of one worker, or every fourth time those of all."""
    sides: dict[str, Side] = {"Redis": "Redis", "PostgreSQL": "PostgreSQL", "sandbox": "sandbox"}
    every = [arena.links[worker, sides[side]] for worker in arena.workers]
    return every if number % 4 == 0 else [every[number % len(every)]]


def _link(proxies: list[Proxy], how: str, fault: Fault) -> Steps:
    for proxy in proxies:
        if how == "slow":
            proxy.delay(0.05 + 0.01 * (fault.number % 30))
        elif how == "cut":
            proxy.cut()
        else:
            proxy.silence()
    yield fault.seconds
    for proxy in proxies:
        proxy.clear()


# --- the outside ----------------------------------------------------------------------------------------------------


def _outside(arena: Arena, name: str, fault: Fault) -> Steps:
    """Misbehave for a time; what lies or loses answers does so until it has, if anybody asks."""
    who, _, how = name.partition(" ")
    targets = ["provider"]
    if who == "CMS":
        targets = ["cms"] if how == "losing answers" else ["cms", "lookup"]
    counter = {"lying": f"{targets[0]}.lied", "losing answers": f"{targets[0]}.lost"}.get(how)
    before = _count(arena, counter)
    arena.stage.control(dict.fromkeys(targets, _behaviour(who, how, fault.number)))
    yield fault.seconds
    for _ in range(int(LONGEST_LIE * fault.seconds)):
        if counter is None or _count(arena, counter) > before:
            break
        yield 1.0
    arena.stage.control({target: {} for target in targets})


def _count(arena: Arena, counter: str | None) -> int:
    """Return how often the sandbox has misbehaved so; 0 where nothing counts it."""
    return 0 if counter is None else int(arena.stage.control()["faults"].get(counter, 0))


def _behaviour(who: str, how: str, number: int) -> dict[str, Any]:
    if how == "slow":
        return {"delay_seconds": 0.5 + number % 5}  # some of it beyond the deadlines
    if how == "failing":
        failures = ({"fail_status": 500}, {"fail_status": 502}, {"fail_status": 503}, _ASKS_TO_WAIT)
        return {"fail_ratio": 1.0, **failures[number % len(failures)]}
    if how == "losing answers":
        return {"lose_answer_times": 6}
    if how == "not ready yet":
        return {"not_yet_times": 1, "retry_after": "2"}
    lies: list[dict[str, Any]] = [
        {"wrong_key": True},
        *({"rubbish": kind} for kind in ("binding", "html", "truncated")),
    ]
    if who == "CMS":
        lies.append({"rubbish": "duplicate"})
    return {**lies[number % len(lies)], "lie_times": LIES}


_ASKS_TO_WAIT: Final = {"fail_status": 429, "retry_after": "2"}
