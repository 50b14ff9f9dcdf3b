"""The wakes of one sweep: found and stamped in the database first, sent after, and not one more once the broker is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection

from worker.flow.services import Services
from worker.store.engine import read_clock, writing
from worker.store.recovery import Found, keep_sweep

Find = Callable[[Connection, int], Found]  # looks for at most so many


class Wakes:
    """What one sweep sends, within the room that the queues have; used by its one thread."""

    def __init__(self, services: Services, *, room: int) -> None:
        self._services = services
        self._is_broker_there = True
        self.room = room  # how many more may be sent
        self.sent = 0
        self.unwoken_seconds = 0.0  # the longest that anything sent had been unwoken

    def send(self, message: str, find: Find, most: int) -> tuple[Mapping[str, str], ...]:
        """Find and stamp at most so many, and send a wake for each; return those that the broker took.

        Stops at the first that it did not take, and then looks for nothing more in this sweep. A wake that is lost
        between stamp and send is found again after the bound. Raises `Unavailable`.
        """
        most = min(most, self.room)
        if most <= 0 or not self._is_broker_there:
            return ()
        found = writing(self._services.engine, lambda conn: find(conn, most))
        self._services.checkpoint(f"sweep.{message}")
        taken = 0
        for ids in found.wakes:
            self._is_broker_there = self._services.queue.wake(message, **ids)
            if not self._is_broker_there:
                break
            taken += 1
        if taken:
            self.unwoken_seconds = max(self.unwoken_seconds, found.unwoken_seconds)
        self.sent += taken
        self.room -= taken
        return found.wakes[:taken]

    def keep(self, *, took_seconds: float) -> None:
        """Keep what this sweep measured, once it is through. Raises `Unavailable`."""

        def work(conn: Connection) -> None:
            keep_sweep(
                conn,
                began_at=read_clock(conn, self._services.now()) - took_seconds,
                took_seconds=took_seconds,
                wakes=self.sent,
                unwoken_seconds=self.unwoken_seconds,
            )

        writing(self._services.engine, work)
