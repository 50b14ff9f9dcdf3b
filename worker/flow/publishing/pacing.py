"""For which sites this process will wake a delivery when the rate allows it: one wait a site. Losing it loses nothing."""

from __future__ import annotations

import threading


class Pacing:
    """The sites with a wait under way. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sites: set[str] = set()

    def begin(self, site_id: str) -> bool:
        """Begin a wait; false where one is under way already."""
        with self._lock:
            is_new = site_id not in self._sites
            self._sites.add(site_id)
            return is_new

    def end(self, site_id: str) -> None:
        """End it."""
        with self._lock:
            self._sites.discard(site_id)
