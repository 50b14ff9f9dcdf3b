"""The policy of each site from one JSON file, read again when it changes; the product's defaults without a file.

The file is `{"default": {...}, "sites": {"<site id>": {...}}}`; a site's entry overrides members of the default. A
file that is broken or gone stops what needs a policy (`policy.unavailable`, retryable) rather than falling back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.domain.canonical import parse_strict
from worker.domain.errors import Blocked, Invalid, Unavailable
from worker.domain.identifier import is_token
from worker.domain.policy import SitePolicy, parse_policy

MAX_BYTES: Final = 4 * 1024 * 1024
RECHECK_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    version: tuple[int, int, int]
    default: SitePolicy
    sites: Mapping[str, SitePolicy]
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
        check: Callable[[SitePolicy], None] = lambda _policy: None,
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
        now = self._current()
        if now.fault:
            raise Unavailable("policy.unavailable", now.fault)
        return now.sites.get(site_id, now.default)

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
            default, sites = self._parse()
        except (Blocked, ValueError) as refusal:
            # A policy holds no content: its path and the rule it breaks may be shown.
            where = f"{refusal.code} at {refusal.path}" if isinstance(refusal, Invalid) else str(refusal)
            return _Snapshot(version=version, default=SitePolicy(), sites={}, fault=f"mend the policy file: {where}")
        except OSError:
            fault = "the policy file cannot be read; check LOCSEAL_POLICY_FILE"
            return _Snapshot(version=version, default=SitePolicy(), sites={}, fault=fault)
        return _Snapshot(version=version, default=default, sites=sites)

    def _parse(self) -> tuple[SitePolicy, dict[str, SitePolicy]]:
        whole: Any = {}
        if self._path is not None:
            whole = parse_strict(self._path.read_bytes(), max_bytes=MAX_BYTES, code="policy.invalid")
        if not isinstance(whole, dict) or not whole.keys() <= {"default", "sites"}:
            raise Invalid("policy.invalid", "the file holds `default` and `sites`")
        base, sites = whole.get("default", {}), whole.get("sites", {})
        if not isinstance(base, dict) or not isinstance(sites, dict):
            raise Invalid("policy.invalid", "`default` and `sites` are objects")
        base = {**self._defaults, **base}
        found: dict[str, SitePolicy] = {}
        for site_id, entry in sites.items():
            if not is_token(site_id) or not isinstance(entry, dict):
                raise Invalid("policy.invalid", "each site id names an object", path="sites")
            found[site_id] = parse_policy({**base, **entry})
        default = parse_policy(base)
        for policy in (default, *found.values()):
            self._check(policy)
        return default, found
