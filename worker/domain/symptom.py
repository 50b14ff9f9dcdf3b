"""What `locseal doctor` may find: stable codes, their weight and what mends them. The looking is done elsewhere.

An error keeps work from being done or leaves a door open; a warning will hurt some day, or makes trouble harder to
see; a note says why something waits on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "note"]
WEIGHTS: Final[Mapping[str, int]] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One thing that was found: a stable code, how bad it is, what it is, what mends it, and a command where one does."""

    code: str
    severity: Severity
    what: str
    fix: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What one part of the installation looks like: facts for people and machines, and what is wrong with it."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    symptoms: tuple[Symptom, ...] = ()


@dataclass(frozen=True)
class Rule:
    """How bad a code is and what mends it. `command` may be pasted; `{...}` in it is filled by who finds it."""

    severity: Severity
    fix: str
    command: str | None = None


RULES: Final[Mapping[str, Rule]] = {
    # --- the program ---
    "doctor.check.unfinished": Rule("error", "read the log line before it; whatever was asked did not answer in time"),
    "package.version.unsupported": Rule(
        "error", "install the locked versions", "pip install --require-hashes -r requirements.lock"
    ),
    "package.file.altered": Rule(
        "error", "reinstall Locseal in an environment of its own", "pip install --force-reinstall --no-deps locseal"
    ),
    "package.file.shared": Rule("error", "give Locseal an environment of its own, or remove the other package"),
    "package.shadowed": Rule("error", "start the program elsewhere, and take the other directory off PYTHONPATH"),
    "package.editable": Rule("note", "install a wheel in production: its files can be checked, a checkout's cannot"),
    # --- the database ---
    "database.unavailable": Rule("error", "start it, or correct LOCSEAL_DATABASE_URL and its password file"),
    "database.unmigrated": Rule("error", "upgrade the schema", "locseal db upgrade"),
    "database.too_new": Rule("error", "upgrade this installation: the database serves this version no more"),
    "database.upgraded": Rule("note", "a later version upgraded the database; replace this one soon"),
    "database.version.old": Rule("warning", "upgrade PostgreSQL; versions from 14 on are tried"),
    "database.clock.skewed": Rule("warning", "set the clocks of both machines by NTP", "timedatectl set-ntp true"),
    "database.clock.wrong": Rule("error", "set the clocks of both machines by NTP", "timedatectl set-ntp true"),
    "database.tls.missing": Rule("warning", "set LOCSEAL_DATABASE_CA_FILE, and ssl = on at the server"),
    "database.tls.unverified": Rule("warning", "set LOCSEAL_DATABASE_CA_FILE; anyone in between could be the server"),
    "database.rights.broad": Rule(
        "warning",
        "let workers connect as locseal_worker, which owns nothing",
        "psql -v ON_ERROR_STOP=1 -f config/deploy/postgres/roles.sql",
    ),
    "database.rights.missing": Rule(
        "error",
        "grant them as locseal_owner, after each upgrade",
        "locseal db grant",
    ),
    "database.connections.few": Rule("warning", "raise max_connections, or lower LOCSEAL_DATABASE_POOL_SIZE"),
    # --- the broker ---
    "broker.unavailable": Rule("error", "start Redis, or correct LOCSEAL_BROKER_URL and its password file"),
    "broker.credentials.refused": Rule("error", "correct the user in LOCSEAL_BROKER_URL and its password file"),
    "broker.rights.missing": Rule("error", "give the Redis user the rights in config/deploy/redis/users.acl"),
    "broker.tls.refused": Rule("error", "name the CA in LOCSEAL_BROKER_CA_FILE and the server as in its certificate"),
    "broker.tls.missing": Rule(
        "warning", "use rediss:// and LOCSEAL_BROKER_CA_FILE; the password travels in the clear"
    ),
    "broker.open": Rule("error", "set a password or TLS; whoever reaches Redis can send messages"),
    "broker.eviction": Rule(
        "error", "let a full Redis refuse instead of forgetting", "redis-cli CONFIG SET maxmemory-policy noeviction"
    ),
    "broker.version.old": Rule("warning", "upgrade Redis; versions from 7.0 on (Valkey from 7.2 on) are tried"),
    "broker.cluster": Rule("error", "use one Redis or Sentinel; Celery cannot use a Redis Cluster as a broker"),
    "broker.read_only": Rule("error", "point LOCSEAL_BROKER_URL at the primary"),
    "broker.persistence.off": Rule(
        "warning", "keep unread submissions over a restart", "redis-cli CONFIG SET appendonly yes"
    ),
    "broker.full": Rule("error", "find out who does not consume, or raise maxmemory"),
    "broker.memory.high": Rule("warning", "find out who does not consume (queues below), or raise maxmemory"),
    "broker.memory.unbounded": Rule("note", "set maxmemory, so that Redis refuses before the kernel ends it"),
    "broker.visibility.short": Rule(
        "warning",
        "let it outlast every lease, on every process alike: messages still worked at come back otherwise",
        "export LOCSEAL_VISIBILITY_TIMEOUT_SECONDS={seconds}",
    ),
    # --- the fleet ---
    "fleet.workers.none": Rule("error", "start workers", "celery -A worker.app worker"),
    "queue.unconsumed": Rule("error", "start a worker for it", "celery -A worker.app worker --queues {queue}"),
    "fleet.unswept": Rule("error", "start beat and a worker for the queue sweep", "celery -A worker.app beat"),
    "flower.open": Rule("error", "start it read-only and behind a password", "locseal flower"),
    "flower.everywhere": Rule("warning", "bind Flower to this machine (--address=127.0.0.1), behind a proxy with TLS"),
    # --- keys ---
    "keys.directory.permissions": Rule("warning", "keep others out of the directory", "chmod 700 {path}"),
    "keys.signer.old": Rule(
        "warning", "rotate it: make another, then retire this one", "locseal keys generate {purpose}"
    ),
    # --- what waits on purpose ---
    "pause.active": Rule("note", "resume when the reason is gone", "locseal resume {scope}"),
    "breaker.open": Rule("warning", "look at the other side; the fleet tries it by itself", "locseal breakers list"),
}


def found(code: str, what: str, *, fix: str | None = None, **filled: str) -> Symptom:
    """Return a symptom of a known code; `filled` goes into the command of its rule, `fix` stands for the rule's own."""
    rule = RULES[code]
    command = rule.command.format(**filled).strip() if rule.command is not None else None
    return Symptom(code=code, severity=rule.severity, what=what, fix=fix or rule.fix, command=command)


def by_weight(symptoms: Iterable[Symptom]) -> tuple[Symptom, ...]:
    """Return symptoms with the worst first, then by code."""
    return tuple(sorted(symptoms, key=lambda one: (WEIGHTS[one.severity], one.code, one.what)))
