"""The first schema, as it was written then: this file never changes with `store.schema`, later files follow it."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

DDL = """
CREATE TABLE submissions (
    document_sha256 VARCHAR NOT NULL, kind VARCHAR NOT NULL, site_id VARCHAR NOT NULL,
    event_id VARCHAR NOT NULL, kid VARCHAR NOT NULL, body TEXT NOT NULL, accepted_at FLOAT NOT NULL,
    PRIMARY KEY (document_sha256)
);

CREATE INDEX submissions_by_event ON submissions (event_id);

CREATE TABLE rejections (
    rejection_id {AUTO_ID} NOT NULL, document_sha256 VARCHAR NOT NULL, size_bytes INTEGER NOT NULL,
    message VARCHAR NOT NULL, code VARCHAR NOT NULL, path VARCHAR NOT NULL, body TEXT, times INTEGER NOT NULL,
    first_at FLOAT NOT NULL, last_at FLOAT NOT NULL, PRIMARY KEY (rejection_id),
    CONSTRAINT rejections_once UNIQUE (document_sha256, code, path)
);

CREATE INDEX rejections_by_time ON rejections (last_at, rejection_id);

CREATE TABLE sources (
    site_id VARCHAR NOT NULL, source_id VARCHAR NOT NULL, created_at FLOAT NOT NULL,
    PRIMARY KEY (site_id, source_id)
);

CREATE TABLE events (
    event_id VARCHAR NOT NULL, site_id VARCHAR NOT NULL, website_version VARCHAR NOT NULL,
    source_id VARCHAR NOT NULL, source_sequence BIGINT NOT NULL, plan_id VARCHAR NOT NULL,
    event_sha256 VARCHAR NOT NULL, document TEXT NOT NULL, state VARCHAR NOT NULL, superseded_by VARCHAR,
    created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, last_woken_at FLOAT, PRIMARY KEY (event_id),
    CONSTRAINT events_sequence_once UNIQUE (site_id, source_id, source_sequence)
);

CREATE INDEX events_by_creation ON events (created_at, event_id);

CREATE INDEX events_by_plan ON events (plan_id);

CREATE INDEX events_by_version ON events (site_id, website_version);

CREATE INDEX events_open ON events (event_id) WHERE state = 'open';

CREATE TABLE withdrawals (
    event_id VARCHAR NOT NULL, site_id VARCHAR NOT NULL, document_sha256 VARCHAR NOT NULL,
    received_at FLOAT NOT NULL, applied_at FLOAT, PRIMARY KEY (event_id, site_id)
);

CREATE TABLE plan_jobs (
    plan_id VARCHAR NOT NULL, job_id VARCHAR NOT NULL, target_locale VARCHAR NOT NULL,
    PRIMARY KEY (plan_id, job_id)
);

CREATE INDEX plan_jobs_by_job ON plan_jobs (job_id);

CREATE TABLE jobs (
    job_id VARCHAR NOT NULL, site_id VARCHAR NOT NULL, target_locale VARCHAR NOT NULL,
    current_result_sha256 VARCHAR, created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, PRIMARY KEY (job_id)
);

CREATE TABLE results (
    job_id VARCHAR NOT NULL, result_sha256 VARCHAR NOT NULL, target_sha256 VARCHAR NOT NULL,
    document TEXT NOT NULL, created_at FLOAT NOT NULL, replaced_at FLOAT, PRIMARY KEY (job_id, result_sha256)
);

CREATE TABLE evidence (
    request_id VARCHAR NOT NULL, event_id VARCHAR NOT NULL, plan_id VARCHAR NOT NULL, job_id VARCHAR NOT NULL,
    result_sha256 VARCHAR NOT NULL, evidence_revision VARCHAR NOT NULL, status VARCHAR NOT NULL,
    attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, next_attempt_at FLOAT NOT NULL,
    lease_owner VARCHAR, lease_token VARCHAR, lease_expires_at FLOAT, last_error_code VARCHAR,
    created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, site_id VARCHAR, provider VARCHAR,
    awaited_since_at FLOAT, renewed_at FLOAT, last_woken_at FLOAT, PRIMARY KEY (request_id),
    CONSTRAINT evidence_binding_once UNIQUE (event_id, plan_id, job_id, result_sha256, evidence_revision)
);

CREATE INDEX evidence_by_event ON evidence (event_id, created_at, request_id);

CREATE INDEX evidence_by_job ON evidence (job_id);

CREATE INDEX evidence_due ON evidence (next_attempt_at, created_at, request_id)
    WHERE status IN ('pending', 'retry_wait');

CREATE INDEX evidence_due_by_site ON evidence (site_id, provider, next_attempt_at, created_at, request_id)
    WHERE status IN ('pending', 'retry_wait');

CREATE INDEX evidence_leased ON evidence (lease_expires_at, site_id) WHERE status = 'leased';

CREATE TABLE pushed_responses (
    document_sha256 VARCHAR NOT NULL, request_id VARCHAR NOT NULL, received_at FLOAT NOT NULL,
    PRIMARY KEY (document_sha256)
);

CREATE INDEX pushed_responses_by_request ON pushed_responses (request_id, received_at);

CREATE TABLE evidence_history (
    history_id {AUTO_ID} NOT NULL, request_id VARCHAR NOT NULL, job_id VARCHAR NOT NULL,
    moved_at FLOAT NOT NULL, row_json TEXT NOT NULL, PRIMARY KEY (history_id)
);

CREATE INDEX evidence_history_by_job ON evidence_history (job_id);

CREATE TABLE setbacks (
    setback_id {AUTO_ID} NOT NULL, subject VARCHAR NOT NULL, subject_id VARCHAR NOT NULL,
    attempt INTEGER NOT NULL, lease_owner VARCHAR, outcome VARCHAR NOT NULL, code VARCHAR NOT NULL,
    retry_after_seconds FLOAT, ended_at FLOAT NOT NULL, PRIMARY KEY (setback_id)
);

CREATE INDEX setbacks_by_subject ON setbacks (subject, subject_id, setback_id);

CREATE TABLE receipts (
    request_id VARCHAR NOT NULL, purpose VARCHAR NOT NULL, receipt TEXT NOT NULL,
    receipt_sha256 VARCHAR NOT NULL, kid VARCHAR, binding TEXT NOT NULL, verified_at FLOAT NOT NULL,
    PRIMARY KEY (request_id, purpose)
);

CREATE TABLE approvals (
    approval_id VARCHAR NOT NULL, job_id VARCHAR NOT NULL, site_id VARCHAR NOT NULL,
    result_sha256 VARCHAR NOT NULL, target_sha256 VARCHAR NOT NULL, request_id VARCHAR NOT NULL,
    policy_sha256 VARCHAR NOT NULL, approved_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, revoked_at FLOAT,
    revoked_reason VARCHAR, revoked_by VARCHAR, document TEXT NOT NULL, signature TEXT NOT NULL, kid VARCHAR NOT NULL,
    PRIMARY KEY (approval_id), UNIQUE (request_id)
);

CREATE INDEX approvals_by_expiry ON approvals (expires_at, approval_id);

CREATE INDEX approvals_by_job ON approvals (job_id, expires_at);

CREATE TABLE public_keys (
    purpose VARCHAR NOT NULL, kid VARCHAR NOT NULL, thumbprint VARCHAR NOT NULL, jwk TEXT NOT NULL,
    first_seen_at FLOAT NOT NULL, PRIMARY KEY (purpose, kid, thumbprint)
);

CREATE TABLE deliveries (
    delivery_id VARCHAR NOT NULL, event_id VARCHAR NOT NULL, site_id VARCHAR NOT NULL,
    source_id VARCHAR NOT NULL, source_sequence BIGINT NOT NULL, plan_id VARCHAR NOT NULL,
    payload TEXT NOT NULL, payload_sha256 VARCHAR NOT NULL, signature TEXT NOT NULL, kid VARCHAR NOT NULL,
    status VARCHAR NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
    next_attempt_at FLOAT NOT NULL, lease_owner VARCHAR, lease_token VARCHAR, lease_expires_at FLOAT,
    last_error_code VARCHAR, created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, in_doubt BOOLEAN NOT NULL,
    sent_at FLOAT, doubt_since_at FLOAT, lookups INTEGER NOT NULL, acknowledged_at FLOAT, renewal_asked_at FLOAT,
    last_woken_at FLOAT, PRIMARY KEY (delivery_id)
);

CREATE INDEX deliveries_by_event ON deliveries (event_id, created_at);

CREATE INDEX deliveries_leased ON deliveries (lease_expires_at) WHERE status = 'leased';

CREATE UNIQUE INDEX deliveries_one_per_event ON deliveries (event_id)
    WHERE status IN ('pending', 'leased', 'retry_wait', 'succeeded');

CREATE INDEX deliveries_unsettled ON deliveries (site_id, source_id, source_sequence)
    WHERE (status = 'leased' OR in_doubt OR last_error_code = 'cms.outcome_unknown');

CREATE INDEX deliveries_wakes ON deliveries
    ((CASE WHEN last_woken_at > next_attempt_at THEN last_woken_at ELSE next_attempt_at END), delivery_id)
    WHERE status IN ('pending', 'retry_wait');

CREATE TABLE delivery_history (
    history_id {AUTO_ID} NOT NULL, delivery_id VARCHAR NOT NULL, event_id VARCHAR NOT NULL,
    moved_at FLOAT NOT NULL, row_json TEXT NOT NULL, PRIMARY KEY (history_id)
);

CREATE INDEX delivery_history_by_event ON delivery_history (event_id, history_id);

CREATE TABLE delivery_permits (
    delivery_id VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt_id VARCHAR NOT NULL,
    granted_at FLOAT NOT NULL, PRIMARY KEY (delivery_id)
);

CREATE INDEX delivery_permits_by_run ON delivery_permits (run_id, attempt_id);

CREATE TABLE delivery_answers (
    answer_id {AUTO_ID} NOT NULL, delivery_id VARCHAR NOT NULL, kind VARCHAR NOT NULL, outcome VARCHAR NOT NULL,
    nonce VARCHAR, document TEXT NOT NULL, signature TEXT, kid VARCHAR, answered_at FLOAT NOT NULL,
    PRIMARY KEY (answer_id)
);

CREATE INDEX delivery_answers_by_delivery ON delivery_answers (delivery_id, answer_id);

CREATE TABLE release_runs (
    run_id VARCHAR NOT NULL, document {BYTES} NOT NULL, record_digest VARCHAR NOT NULL, status VARCHAR NOT NULL,
    PRIMARY KEY (run_id)
);

CREATE TABLE run_commands (
    attempt_id VARCHAR NOT NULL, run_id VARCHAR NOT NULL, step_id VARCHAR NOT NULL, site_id VARCHAR NOT NULL,
    status VARCHAR NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
    next_attempt_at FLOAT NOT NULL, lease_owner VARCHAR, lease_token VARCHAR, lease_expires_at FLOAT,
    last_error_code VARCHAR, created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, last_woken_at FLOAT,
    PRIMARY KEY (attempt_id)
);

CREATE INDEX run_commands_by_run ON run_commands (run_id);

CREATE INDEX run_commands_due ON run_commands (next_attempt_at, created_at, attempt_id)
    WHERE status IN ('pending', 'retry_wait');

CREATE INDEX run_commands_leased ON run_commands (lease_expires_at) WHERE status = 'leased';

CREATE TABLE operator_requests (
    request_id VARCHAR NOT NULL, command VARCHAR NOT NULL, arguments_sha256 VARCHAR NOT NULL, answer TEXT NOT NULL,
    requested_at FLOAT NOT NULL, PRIMARY KEY (request_id)
);

CREATE TABLE installation (
    name VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (name)
);

CREATE TABLE pauses (
    scope VARCHAR NOT NULL, name VARCHAR NOT NULL, owner VARCHAR NOT NULL, reason VARCHAR NOT NULL,
    paused_at FLOAT NOT NULL, until_at FLOAT, PRIMARY KEY (scope, name)
);

CREATE TABLE breakers (
    kind VARCHAR NOT NULL, name VARCHAR NOT NULL, is_open BOOLEAN NOT NULL, generation BIGINT NOT NULL,
    failures INTEGER NOT NULL, pause_seconds FLOAT NOT NULL, open_until_at FLOAT, reason VARCHAR, opened_by VARCHAR,
    probe_token VARCHAR, probe_expires_at FLOAT, updated_at FLOAT NOT NULL, PRIMARY KEY (kind, name)
);

CREATE TABLE limits (
    kind VARCHAR NOT NULL, name VARCHAR NOT NULL, next_call_at FLOAT NOT NULL, PRIMARY KEY (kind, name)
);

CREATE TABLE sweeps (
    name VARCHAR NOT NULL, swept_at FLOAT NOT NULL, cursor VARCHAR, PRIMARY KEY (name)
);

CREATE VIEW submission_status AS
SELECT document_sha256, 'accepted' AS state, NULL AS code, accepted_at AS at FROM submissions
UNION ALL
SELECT r.document_sha256, 'rejected' AS state, r.code AS code, r.last_at AS at FROM rejections r
WHERE NOT EXISTS (SELECT 1 FROM submissions s WHERE s.document_sha256 = r.document_sha256)
  AND NOT EXISTS (SELECT 1 FROM rejections n WHERE n.document_sha256 = r.document_sha256
                  AND (n.last_at > r.last_at OR (n.last_at = r.last_at AND n.rejection_id > r.rejection_id)))
"""


def upgrade() -> None:
    """Create every table, index and view."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    auto_id, octets = ("INTEGER", "BLOB") if is_sqlite else ("BIGSERIAL", "BYTEA")
    for statement in DDL.replace("{AUTO_ID}", auto_id).replace("{BYTES}", octets).split(";\n\n"):
        op.execute(statement)
