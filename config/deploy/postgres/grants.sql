-- What each role may do with each table. `locseal db grant` runs this as the owner, after every `locseal db upgrade`;
-- so does psql. One transaction, safe to run again at any time. Roles come from roles.sql.

REVOKE ALL ON ALL TABLES IN SCHEMA public
    FROM PUBLIC, locseal_worker, locseal_operator, locseal_pruner, locseal_reader, locseal_producer, locseal_scaler;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO locseal_worker, locseal_operator, locseal_pruner;

-- --- the fleet ------------------------------------------------------------------------------------------------------
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO locseal_worker;
REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM locseal_worker;
-- What proves why a text went live: a worker adds to it, and neither changes nor removes it.
REVOKE UPDATE, DELETE ON
    submissions, receipts, public_keys, setbacks, delivery_answers, evidence_history, delivery_history, approvals,
    withdrawals, results, events, plan_jobs, pushed_responses
    FROM locseal_worker;
GRANT UPDATE (applied_at) ON withdrawals TO locseal_worker;
GRANT UPDATE (replaced_at) ON results TO locseal_worker;
GRANT UPDATE (state, superseded_by, updated_at, last_woken_at) ON events TO locseal_worker;
-- A delivery moves on; its signed bytes and whose they are never change.
REVOKE UPDATE, DELETE ON deliveries FROM locseal_worker;
GRANT UPDATE (
    status, attempts, max_attempts, next_attempt_at, lease_owner, lease_token, lease_expires_at, last_error_code,
    updated_at, in_doubt, sent_at, doubt_since_at, lookups, acknowledged_at, renewal_asked_at, last_woken_at
) ON deliveries TO locseal_worker;
-- Words of operators.
REVOKE INSERT, UPDATE, DELETE ON pauses, legal_holds, prunings, pruned_events FROM locseal_worker;
REVOKE DELETE ON operator_requests, release_runs, installation, rejections, jobs, sources FROM locseal_worker;

-- --- people ---------------------------------------------------------------------------------------------------------
-- (a member of locseal_worker, by roles.sql)
GRANT INSERT, UPDATE, DELETE ON pauses TO locseal_operator;
GRANT INSERT, UPDATE ON legal_holds TO locseal_operator;
GRANT UPDATE (updated_at) ON prunings TO locseal_operator; -- to wait for the batch that is being removed
GRANT UPDATE (revoked_at, revoked_reason, revoked_by) ON approvals TO locseal_operator;
GRANT DELETE ON deliveries TO locseal_operator; -- a retry of the very same bytes, after the row went to the history

-- --- what is old and no audit needs -----------------------------------------------------------------------------------
GRANT INSERT, UPDATE ON prunings, pruned_events TO locseal_pruner;
GRANT DELETE ON rejections, setbacks, evidence_history, deliveries TO locseal_pruner;

-- --- who only looks -------------------------------------------------------------------------------------------------
GRANT SELECT ON ALL TABLES IN SCHEMA public TO locseal_reader;
GRANT SELECT ON submission_status TO locseal_producer;
GRANT SELECT (status, next_attempt_at, lease_expires_at, site_id, provider) ON evidence TO locseal_scaler;
GRANT SELECT (status, next_attempt_at, last_woken_at, lease_expires_at, site_id) ON deliveries TO locseal_scaler;
GRANT SELECT (scope, name, until_at) ON pauses TO locseal_scaler;
GRANT SELECT (kind, name, is_open) ON breakers TO locseal_scaler;
