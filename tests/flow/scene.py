"""A database full of history, as `tests.audited` tells it, that each test may change and that is put back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, insert, select, update

from tests.audited import Story
from worker.store.engine import reading, writing
from worker.store.schema import deliveries

Row = dict[str, Any]


@dataclass
class Scene:
    """A database full of history that each test may damage; it is put back afterwards, table by table."""

    engine: Engine
    story: Story
    whole: dict[Table, list[Row]]

    def rows(self, table: Table, **where: Any) -> list[Row]:
        """Return the undamaged rows with these values, in the order of their keys."""
        return [row for row in self.whole[table] if all(row[name] == value for name, value in where.items())]

    def row(self, table: Table, **where: Any) -> Row:
        """Return the first of them."""
        return self.rows(table, **where)[0]

    def delivery(self, event_id: str) -> Row:
        """Return the delivery of an event."""
        return self.row(deliveries, event_id=event_id)

    def now(self, table: Table, **where: Any) -> list[Row]:
        """Return the rows with these values as they are now."""
        with reading(self.engine) as conn:
            found = conn.execute(select(table).where(*(table.c[name] == value for name, value in where.items())))
            return [dict(row) for row in found.mappings()]

    def damage(self, change: Callable[[Connection], object]) -> None:
        """Change rows behind the product's back."""
        writing(self.engine, change)

    def alter(self, table: Table, row: Row, **values: Any) -> None:
        """Change columns of one row."""
        self.damage(lambda conn: conn.execute(update(table).where(*_same(table, row)).values(**values)))

    def remove(self, table: Table, row: Row) -> None:
        """Delete one row."""
        self.damage(lambda conn: conn.execute(delete(table).where(*_same(table, row))))

    def restore(self) -> None:
        """Put every row back as it was."""

        def work(conn: Connection) -> None:
            for table, rows in self.whole.items():
                conn.execute(delete(table))
                if rows:
                    conn.execute(insert(table), rows)

        writing(self.engine, work)


def _same(table: Table, row: Row) -> list[Any]:
    return [column == row[column.name] for column in table.primary_key.columns]
