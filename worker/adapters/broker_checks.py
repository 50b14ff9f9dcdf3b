"""What is wrong with the broker, and which queues nobody reads. Looks only; every answer is awaited for a bounded time."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from celery import Celery
from kombu.exceptions import KombuError
from redis import exceptions

from worker.domain.messages import WIRE
from worker.domain.symptom import Examination, Symptom, found

OLDEST_REDIS: Final = (7, 0)
FULL_SHARE: Final = 0.8  # of maxmemory, from which on a warning is due
REPLY_SECONDS: Final = 1.5  # for which workers are waited for
QUEUES: Final = tuple(sorted({queue for queue, _ in WIRE.values()}))

_FAULTS: Final = (exceptions.RedisError, KombuError, OSError)


def examine_broker(place: str, *, broker_url: str | None = None, asks_workers: bool = True) -> Examination:
    """Return what Redis says of itself and how long each queue is; with `asks_workers` also who reads which queue.

    Connects as the fleet does, by `config.celeryconfig`, or to `broker_url` (a secret). `place` names the broker for
    people. Waits at most a few time-outs of the settings, and `REPLY_SECONDS` for the workers.
    """
    app = Celery("locseal-doctor", set_as_current=False)
    if broker_url is None:
        app.config_from_object("config.celeryconfig")
    else:
        app.config_from_object({"broker_write_url": broker_url, "broker_read_url": broker_url})
    try:
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            said = client.info("everything") if hasattr(client, "info") else {}
            lengths = {queue: _length(connection.default_channel, queue) for queue in QUEUES}
    except _FAULTS as fault:
        return Examination(facts={"place": place}, symptoms=(_unreachable(place, fault),))
    facts: dict[str, Any] = {
        "place": place,
        "version": _version_text(said),
        "policy": said.get("maxmemory_policy"),
        "used_bytes": said.get("used_memory"),
        "queues": lengths,
    }
    symptoms = list(_of_server(said))
    if asks_workers:
        consumers = _consumers(app)
        facts["consumers"] = consumers
        symptoms += _of_queues(lengths, consumers)
    return Examination(facts=facts, symptoms=tuple(symptoms))


def _unreachable(place: str, fault: BaseException) -> Symptom:
    """Return why Redis could not be asked. Texts of others are never shown: they may hold the URL."""
    chain = list(_chain(fault))
    kinds = " from ".join(dict.fromkeys(type(one).__name__ for one in chain))
    if any(isinstance(one, ssl.SSLError) for one in chain):
        return found("broker.tls.refused", f"no TLS with {place}: its certificate does not verify, or it speaks none")
    if any(isinstance(one, exceptions.AuthenticationError) for one in chain):
        return found("broker.credentials.refused", f"{place} refused our user or password")
    if any(isinstance(one, exceptions.NoPermissionError) for one in chain):
        return found("broker.rights.missing", f"{place} refused a command that the fleet needs")
    if any(isinstance(one, exceptions.OutOfMemoryError) for one in chain):
        return found("broker.full", f"{place} has no memory left and takes no message")
    return found("broker.unavailable", f"{place} did not answer ({kinds})")


def _chain(fault: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = fault
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _length(channel: Any, queue: str) -> int:
    """Return the length of a queue over all its priorities. One by one: a full Redis refuses transactions."""
    keys = [channel._q_for_pri(queue, step) for step in channel.priority_steps]  # noqa: SLF001 - kombu's own names
    return sum(int(channel.client.llen(key)) for key in keys)


def _version_text(said: Mapping[str, Any]) -> str:
    return f"Valkey {said['valkey_version']}" if "valkey_version" in said else f"Redis {said.get('redis_version')}"


def _of_server(said: Mapping[str, Any]) -> Iterator[Symptom]:
    """Judge what the server says of itself."""
    number = str(said.get("redis_version", "0"))
    version = tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
    if version < OLDEST_REDIS:
        yield found("broker.version.old", f"it is {_version_text(said)}")
    if said.get("cluster_enabled"):
        yield found("broker.cluster", "it runs in cluster mode")
    if said.get("role", "master") != "master":
        yield found("broker.read_only", "it is a replica and takes no message")
    policy = said.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield found("broker.eviction", f"a full Redis would delete messages ({policy})")
    if not said.get("aof_enabled"):
        yield found("broker.persistence.off", "its append-only file is off: unread submissions go with a restart")
    most, used = int(said.get("maxmemory", 0)), int(said.get("used_memory", 0))
    if most and used > FULL_SHARE * most:
        yield found("broker.memory.high", f"{used * 100 // most} % of its {most // 2**20} MiB are used")
    if not most:
        yield found("broker.memory.unbounded", "it has no maxmemory")


def _consumers(app: Celery) -> dict[str, list[str]]:
    """Return which workers read each queue, as far as they answered in time."""
    try:
        answers = app.control.inspect(timeout=REPLY_SECONDS).active_queues() or {}
    except _FAULTS:
        return {}
    names: dict[str, list[str]] = {queue: [] for queue in QUEUES}
    for worker, read in sorted(answers.items()):
        for one in read:
            names.setdefault(str(one.get("name")), []).append(worker)
    return names


def _of_queues(lengths: Mapping[str, int], consumers: Mapping[str, Sequence[str]]) -> Iterator[Symptom]:
    """Judge which queues nobody reads."""
    if not any(consumers.values()):
        waiting = sum(lengths.values())
        yield found("fleet.workers.none", f"no worker answered within {REPLY_SECONDS:g} s; {waiting} messages wait")
        return
    for queue in QUEUES:
        if not consumers.get(queue):
            what = f"no worker reads the queue {queue}; {lengths.get(queue, 0)} messages wait in it"
            yield found("queue.unconsumed", what, queue=queue)
