"""The policy of each site from one JSON file, read again when it changes; the product's defaults without a file.

The file is `{"default": {...}, "sites": {"<site id>": {...}}, "providers": {"<route>": {...}}}`; a site's entry
overrides members of the default. A file that is broken or gone stops what needs a policy (`policy.unavailable`,
retryable) rather than falling back. What is right in it is `domain.policy_file`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.domain.canonical import parse_strict
from worker.domain.errors import Invalid, Unavailable
from worker.domain.limits import FleetLimits
from worker.domain.policy import EvidenceLeases, RoutePolicy, SitePolicy
from worker.domain.policy_file import INVALID, Check, InvalidPolicy, PolicyFault, PolicyFile, read_policy_file

MAX_BYTES: Final = 4 * 1024 * 1024
RECHECK_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    version: tuple[int, int, int]
    file: PolicyFile
    fault: str = ""


class FilePolicies:
    """Policies by site id. Safe to share between threads; looks at the file once a second.

    `check` may refuse a policy that this process cannot keep (a lease shorter than its calls) with a `ValueError`.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        defaults: Mapping[str, Any] | None = None,
        check: Check = lambda _policy: None,
        recheck_seconds: float = RECHECK_SECONDS,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._defaults = dict(defaults or {})
        self._check = check
        self._recheck_seconds = recheck_seconds
        self._ticks = ticks
        self._lock = threading.Lock()
        self._checked_at = 0.0
        self._snapshot: _Snapshot | None = None

    def for_site(self, site_id: str) -> SitePolicy:
        """Return the site's policy, the default where none is named; `Unavailable` while the file cannot be used."""
        return self._usable().for_site(site_id)

    def for_provider(self, route: str) -> RoutePolicy:
        """Return what is kept to towards a review route; `Unavailable` while the file cannot be used."""
        return self._usable().providers.get(route, RoutePolicy())

    def limits(self) -> FleetLimits:
        """Return the bounds on open calls to review providers; `Unavailable` while the file cannot be used."""
        return self._usable().limits

    def evidence_leases(self) -> EvidenceLeases:
        """Return the leases on evidence rows; `Unavailable` while the file cannot be used."""
        return self._usable().evidence_leases

    def _usable(self) -> PolicyFile:
        now = self._current()
        if now.fault:
            raise Unavailable("policy.unavailable", now.fault)
        return now.file

    def _current(self) -> _Snapshot:
        with self._lock:
            if self._snapshot is not None and self._ticks() - self._checked_at < self._recheck_seconds:
                return self._snapshot
            self._checked_at = self._ticks()
            version = self._version()
            if self._snapshot is None or self._snapshot.version != version:
                self._snapshot = self._read(version)
            return self._snapshot

    def _version(self) -> tuple[int, int, int]:
        if self._path is None:
            return (0, 0, 0)
        try:
            found = self._path.stat()
        except OSError:
            return (-1, -1, -1)
        return (found.st_mtime_ns, found.st_ino, found.st_size)

    def _read(self, version: tuple[int, int, int]) -> _Snapshot:
        try:
            return _Snapshot(version=version, file=read_file(self._path, defaults=self._defaults, check=self._check))
        except Invalid as refusal:
            # A policy holds no content: its path and the rule it breaks may be shown.
            where = f" at {refusal.path}" if refusal.path else ""
            fault = f"mend the policy file (locseal policy check): {refusal.message or refusal.code}{where}"
            return _Snapshot(version=version, file=PolicyFile(), fault=fault)
        except OSError:
            fault = "the policy file cannot be read; check LOCSEAL_POLICY_FILE"
            return _Snapshot(version=version, file=PolicyFile(), fault=fault)


def read_file(
    path: Path | None,
    *,
    defaults: Mapping[str, Any] | None = None,
    check: Check = lambda _policy: None,
    routes: Iterable[str] | None = None,
) -> PolicyFile:
    """Return the policies of a file, or those of an empty one without a path.

    Raises `InvalidPolicy` with all faults at once (one alone where it is no strict JSON), `OSError` where it cannot be
    read.
    """
    whole: Any = {}
    if path is not None:
        with path.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
        try:
            whole = parse_strict(raw, max_bytes=MAX_BYTES, code=INVALID)
        except Invalid:
            rule = f"the file is strict JSON of at most {MAX_BYTES} bytes, without duplicate names"
            raise InvalidPolicy([PolicyFault(path="", code="policy.json.invalid", rule=rule)]) from None
    return read_policy_file(whole, defaults=defaults, check=check, routes=routes)
