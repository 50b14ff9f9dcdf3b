"""Which locales are asked about again: the whole table of reasons, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from worker.domain.renewal import GivenApproval, LocaleStanding, RenewalKind, is_reopened

NOW, LEAD = 1000.0, 100.0


def given(
    expires_at: float, *, approved_at: float = 500.0, revoked: bool = False, accepted: bool = True
) -> GivenApproval:
    """Return an approval."""
    return GivenApproval(approved_at=approved_at, expires_at=expires_at, is_revoked=revoked, is_accepted=accepted)


def kinds(*, every: bool = False, **values: Any) -> set[RenewalKind]:
    """Return the kinds of asking again that take this locale."""
    standing = LocaleStanding(**{"has_result": True, "is_asked": False, "row_status": "succeeded", **values})
    every_kind: tuple[RenewalKind, ...] = ("renew", "expiring", "retry")
    return {one for one in every_kind if is_reopened(one, standing, now=NOW, within_seconds=LEAD, every=every)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"approvals": (given(1100.5),)}, set()),
        ({"approvals": (given(1100.0),)}, {"renew", "expiring"}),
        ({"approvals": (given(900.0),)}, {"renew", "expiring"}),
        ({"approvals": (given(900.0), given(5000.0, approved_at=600.0))}, set()),
        ({"approvals": (given(5000.0, revoked=True),)}, {"renew"}),
        ({"approvals": (given(900.0), given(5000.0, approved_at=600.0, revoked=True))}, {"renew"}),
        ({"approvals": (given(900.0, revoked=True), given(1050.0, approved_at=600.0))}, {"renew", "expiring"}),
        ({"approvals": (given(5000.0, accepted=False),)}, {"renew"}),
        ({"approvals": (given(900.0, accepted=False),)}, {"renew", "expiring"}),
        ({"approvals": (given(900.0),), "is_asked": True}, set()),
        ({"approvals": (given(900.0),), "has_result": False}, set()),
        ({"row_status": None}, {"renew"}),
        ({"row_status": "failed"}, {"retry"}),
        ({"row_status": "failed", "is_asked": True}, set()),
        ({"row_status": "failed", "row_created_at": 600.0, "approvals": (given(900.0),)}, {"renew", "retry"}),
        (
            {"row_status": "failed", "row_created_at": 400.0, "approvals": (given(900.0),)},
            {"renew", "expiring", "retry"},
        ),
        ({"row_status": "failed", "approvals": (given(5000.0),)}, set()),
        ({"row_status": "failed", "row_renewed_at": 600.0, "approvals": (given(5000.0),)}, {"retry"}),
        ({"row_status": "failed", "row_renewed_at": 600.0, "approvals": (given(5000.0, approved_at=600.0),)}, set()),
    ],
)
def test_the_table_of_reasons(values: dict[str, Any], expected: set[RenewalKind]) -> None:
    """What ends soon is renewed either way; what was revoked, unasked or failed only on a word."""
    assert kinds(**values) == expected


def test_every_renews_whatever_it_lasts_but_nothing_that_is_being_asked() -> None:
    """And never what only ever failed: that is retried."""
    assert kinds(every=True, approvals=(given(5000.0),)) == {"renew"}
    assert kinds(every=True, approvals=(given(5000.0),), is_asked=True) == set()
    assert kinds(every=True, row_status="failed") == {"retry"}
