"""docs/policy.md says what the policy file holds: every member, every default, every code, and an example that works."""

from __future__ import annotations

import json
import re
from pathlib import Path

from worker.domain.policy import SitePolicy
from worker.domain.policy_file import _KINDS, read_policy_file

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()


def test_the_example_is_a_good_policy_file() -> None:
    """As it stands on the page."""
    example = json.loads(PAGE.split("```json\n")[1].split("```")[0])
    found = read_policy_file(example)
    assert found.for_site("my-site").publication == "guided"
    assert found.for_site("my-site").route("legal") == "lawyers"
    assert found.providers["lawyers"].limits.concurrent_calls == 4


def test_the_page_names_every_member_and_its_default() -> None:
    """Members in the first column; numbers and words of the defaults in the second."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| `")
    ]
    members = {name: row[1] for row in rows for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert set(SitePolicy.model_fields) == {name for name in members if name in SitePolicy.model_fields}
    policy = SitePolicy()
    for name in ("publication", "reconciliation"):
        assert members[name] == f"`{getattr(policy, name)}`"
    for name in ("approval_ttl_seconds", "renewal_lead_seconds", "review_deadline_seconds", "evidence_max_attempts"):
        assert float(members[name]) == getattr(policy, name)
    assert json.loads(members["delivery_breaker"].strip("`")) == policy.delivery_breaker.to_json()


def test_the_page_names_every_code() -> None:
    """Those of the library's errors and our own."""
    named = set(re.findall(r"`(policy\.[a-z_.]+)`", PAGE)) - {"policy.json"}
    assert set(_KINDS.values()) <= named
    own = {"policy.json.invalid", "policy.value.type", "policy.locale.invalid", "policy.name.invalid"}
    assert own | {"policy.route.unknown", "policy.lease.too_short"} <= named
