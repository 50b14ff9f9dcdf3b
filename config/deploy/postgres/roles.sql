-- The roles of a fleet, each with the least it needs. Run once in the fleet's empty database, as a superuser:
--
--   psql -v ON_ERROR_STOP=1 -d locseal -f config/deploy/postgres/roles.sql
--
-- Then give each role that somebody connects as a password (\password locseal_worker), demand TLS in pg_hba.conf
-- (hostssl locseal all all scram-sha-256), run `locseal db upgrade` and `locseal db grant` as locseal_owner, and both
-- again with each new version. Safe to run again.
--
--   locseal_owner     owns database and tables: upgrades and grants. No worker connects as it.
--   locseal_worker    workers and beat: whatever a release needs; cannot drop, alter or take away what an audit reads.
--   locseal_operator  people at `locseal ...`: a worker's rights, and pauses, holds, revocations, retries.
--   locseal_pruner    `locseal prune`: a worker's rights, and to remove what no audit needs.
--   locseal_reader    audit, metrics, status: reads everything, writes nothing.
--   locseal_producer  pipelines: the view submission_status alone.
--   locseal_scaler    KEDA: how much is due, and what is held back; no text, no name of an event.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['owner', 'worker', 'operator', 'pruner', 'reader', 'producer', 'scaler'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'locseal_' || role) THEN
            EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', 'locseal_' || role);
        END IF;
    END LOOP;
    GRANT locseal_worker TO locseal_operator, locseal_pruner;
    EXECUTE format('ALTER DATABASE %I OWNER TO locseal_owner', current_database());
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format(
        'GRANT CONNECT ON DATABASE %I TO locseal_worker, locseal_operator, locseal_pruner, locseal_reader,'
        ' locseal_producer, locseal_scaler', current_database());
END
$$;

-- From the first version on the owner owned what was there; a database that had one role for everything is handed over.
DO $$
DECLARE
    relation record;
BEGIN
    FOR relation IN
        SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v')
          AND pg_get_userbyid(c.relowner) <> 'locseal_owner'
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO locseal_owner',
                       CASE relation.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, relation.name);
    END LOOP;
END
$$;

ALTER SCHEMA public OWNER TO locseal_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public
    TO locseal_worker, locseal_operator, locseal_pruner, locseal_reader, locseal_producer, locseal_scaler;
