-- compatible-from: 1
--
-- Sessions, their changes, tasks, audit and settings, and the functions that write them.
--
-- It runs with the store's schema as its search path, in one transaction with the mark that it ran.
--
-- Keys are led by (tenant, session_id), and every statement of the service has both: sessions and
-- changes can be PARTITIONed BY HASH (tenant, session_id), tasks BY HASH (tenant, task_id), audit
-- BY HASH (tenant), with no statement changed. docs/postgresql.md has the steps.
--
-- COLLATE "C": texts are compared and sorted byte by byte. For UTF-8 that is by code point, as on
-- every engine; and an upgrade of the system's locales cannot put an index out of order.
--
-- The order of the log. Row numbers are given out before the commit, so a reader of "position >
-- last" passes over what commits late. Each change therefore has a label: the number of the
-- transaction that wrote it. All transactions below pg_snapshot_xmin have ended, so what is below
-- it is complete for ever, and (label, position) is read up to there. A session's changes stay in
-- the order of their revisions although a transaction may get its number before it has the
-- session's lock: a change's label is never below that of the change before it (sessions.log_label
-- carries it), which moves it up in the log only to a place that no reader has passed.
-- log_offset is added to every label. It is 0 until a dump is restored into a server whose
-- transaction numbers are lower than where the dump came from: then it makes up the difference.

-- Some indexes have a condition that every row meets. PostgreSQL uses such an index only for a
-- statement that says the condition too, so that each lookup has one index that it can go by. With
-- two to choose from it would take the shorter key and read all changes of a session to find one
-- request in them: cheap for most sessions, by its statistics, and not for the long ones.

CREATE TABLE sessions (
    tenant text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    create_us bigint NOT NULL,
    update_us bigint NOT NULL,
    log_label bigint NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (tenant, session_id)
-- Room in each page for the next version of its rows: an update then touches no index.
) WITH (fillfactor = 70);

CREATE TABLE changes (
    label bigint NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    revision bigint NOT NULL,
    time_us bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    method text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    actor text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    events bytea NOT NULL,
    answer bytea NOT NULL,
    PRIMARY KEY (label, position)
);

CREATE UNIQUE INDEX changes_by_revision
    ON changes (tenant, session_id, revision) WHERE revision > 0;

CREATE UNIQUE INDEX changes_by_request
    ON changes (tenant, session_id, request_id, method, actor) WHERE request_id <> '';

CREATE TABLE tasks (
    create_us bigint NOT NULL,
    update_us bigint NOT NULL,
    expire_us bigint,
    tenant text COLLATE "C" NOT NULL,
    task_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, task_id)
) WITH (fillfactor = 70);

CREATE INDEX tasks_by_session ON tasks (tenant, session_id, create_us, task_id)
    WHERE create_us >= 0;

-- By the session's own name: a refusal may concern a session that was never stored.
CREATE TABLE audit (
    label bigint NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    time_us bigint NOT NULL,
    revision bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (label, position)
);

CREATE INDEX audit_by_tenant ON audit (tenant, label, position) WHERE position > 0;
CREATE INDEX audit_by_session ON audit (tenant, session_id, label, position) WHERE position > 0;
CREATE INDEX audit_by_request ON audit (tenant, session_id, request_id, kind);

CREATE TABLE settings (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- One row. store_id tells cursors of this store from those of another.
CREATE TABLE store (
    one boolean PRIMARY KEY CHECK (one),
    store_id bytea NOT NULL,
    log_offset bigint NOT NULL
);

INSERT INTO store (one, store_id, log_offset)
    VALUES (true, substring(uuid_send(gen_random_uuid()) FROM 9), 0);

-- What a readiness probe writes: one row, which nothing else waits for.
CREATE TABLE probes (
    one boolean PRIMARY KEY CHECK (one),
    writes bigint NOT NULL
) WITH (fillfactor = 10);

INSERT INTO probes (one, writes) VALUES (true, 0);

-- A commit returns when it is on disk, whatever the role, the database or a pooler's connection
-- was set to. It holds for this transaction alone, and leaves what is stronger as it is.
CREATE FUNCTION be_durable() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- The label of what this transaction writes.
CREATE FUNCTION own_label() RETURNS bigint LANGUAGE sql
SET search_path FROM CURRENT
AS $$
    SELECT pg_current_xact_id()::text::bigint + log_offset FROM store
$$;

-- Appends a group: all that may be stored, and for the others a row each that says why not. In
-- one call, so that it is one round trip and one transaction, with no prepared statement.
--
-- The arrays run in parallel, sorted by (tenant, session_id), each session in at most one place;
-- those of the tasks by (tenant, task_id), each task in at most one place. Sorted, so that two
-- replicas' groups wait for each other in one order and never in a circle.
--
-- First all is decided and then all is written, so that a refused append needs no undoing. What
-- another transaction wrote between the two (only possible where no row was there to be locked)
-- is raised as 40001: the caller repeats the group and then sees it.
--
-- The switched-off plans: every row is looked up by its key. A plan that was made while a table
-- was empty, and kept, would read it from end to end for ever after.
CREATE FUNCTION append_group(
    p_tenants text[],
    p_session_ids text[],
    p_bases bigint[],
    p_user_ids text[],
    p_states bytea[],
    p_times bigint[],
    p_methods text[],
    p_request_ids text[],
    p_actors text[],
    p_fingerprints bytea[],
    p_events bytea[],
    p_answers bytea[],
    p_task_items bigint[],
    p_task_tenants text[],
    p_task_session_ids text[],
    p_task_ids text[],
    p_task_user_ids text[],
    p_task_statuses text[],
    p_task_creates bigint[],
    p_task_updates bigint[],
    p_task_expires bigint[],
    p_task_data bytea[]
) RETURNS TABLE (
    item bigint,
    refusal text,
    revision bigint,
    time_us bigint,
    method text,
    request_id text,
    actor text,
    fingerprint bytea,
    events bytea,
    answer bytea,
    task_id text,
    task_session_id text
) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    revisions bigint[];
    labels bigint[];
    taken bigint[] := '{}';
    refusals text[];
    write_label bigint;
    wanted_rows bigint;
    written_rows bigint;
BEGIN
    PERFORM be_durable();

    -- Row by row in the arrays' order: nothing but a lateral join promises that.
    SELECT array_agg(coalesce(head.revision, 0) ORDER BY wanted.item),
           array_agg(head.log_label ORDER BY wanted.item)
    INTO revisions, labels
    FROM unnest(p_tenants, p_session_ids) WITH ORDINALITY AS wanted (tenant, session_id, item)
    LEFT JOIN LATERAL (
        SELECT sessions.revision, sessions.log_label
        FROM sessions
        WHERE sessions.tenant = wanted.tenant AND sessions.session_id = wanted.session_id
        FOR NO KEY UPDATE
    ) AS head ON true;

    IF cardinality(p_task_ids) > 0 THEN
        SELECT coalesce(array_agg(DISTINCT wanted.item), '{}')
        INTO taken
        FROM unnest(p_task_items, p_task_tenants, p_task_session_ids, p_task_ids)
            AS wanted (item, tenant, session_id, task_id)
        JOIN tasks ON tasks.tenant = wanted.tenant AND tasks.task_id = wanted.task_id
        WHERE tasks.session_id <> wanted.session_id;
    END IF;

    -- A statement of its own, after the locks: it sees what was committed while they were waited
    -- for.
    SELECT array_agg(
               CASE
                   WHEN seen.revision IS NOT NULL THEN 'seen'
                   WHEN wanted.revision <> wanted.base THEN 'conflict'
                   WHEN wanted.item = ANY (taken) THEN 'taken'
               END
               ORDER BY wanted.item
           ),
           count(*) FILTER (
               WHERE seen.revision IS NULL
               AND wanted.revision = wanted.base
               AND wanted.item <> ALL (taken)
           )
    INTO refusals, wanted_rows
    FROM unnest(
             p_tenants, p_session_ids, p_bases, p_methods, p_request_ids, p_actors, revisions
         ) WITH ORDINALITY
         AS wanted (tenant, session_id, base, method, request_id, actor, revision, item)
    LEFT JOIN LATERAL (
        SELECT changes.revision
        FROM changes
        WHERE changes.tenant = wanted.tenant
        AND changes.session_id = wanted.session_id
        AND changes.request_id = wanted.request_id
        AND changes.method = wanted.method
        AND changes.actor = wanted.actor
        AND changes.request_id <> ''
    ) AS seen ON true;

    IF wanted_rows > 0 THEN
        write_label := own_label();

        INSERT INTO changes (
            label, tenant, session_id, revision, time_us, method, request_id, actor, fingerprint,
            events, answer
        )
        SELECT greatest(write_label, wanted.label), wanted.tenant, wanted.session_id,
               wanted.base + 1, wanted.time_us, wanted.method, wanted.request_id, wanted.actor,
               wanted.fingerprint, wanted.events, wanted.answer
        FROM unnest(
                 p_tenants, p_session_ids, p_bases, p_times, p_methods, p_request_ids, p_actors,
                 p_fingerprints, p_events, p_answers, labels, refusals
             ) AS wanted (
                 tenant, session_id, base, time_us, method, request_id, actor, fingerprint, events,
                 answer, label, refusal
             )
        WHERE wanted.refusal IS NULL
        ON CONFLICT (tenant, session_id, revision) WHERE revision > 0 DO NOTHING;

        GET DIAGNOSTICS written_rows = ROW_COUNT;
        IF written_rows <> wanted_rows THEN
            -- A session that another transaction has just made; or changes without their head.
            IF EXISTS (
                SELECT FROM unnest(p_tenants, p_session_ids, p_bases, refusals)
                    AS wanted (tenant, session_id, base, refusal)
                JOIN changes
                    ON changes.tenant = wanted.tenant
                    AND changes.session_id = wanted.session_id
                    AND changes.revision = wanted.base + 1
                    AND changes.revision > 0
                WHERE wanted.refusal IS NULL
                AND changes.xmin <> pg_current_xact_id()::xid
                AND wanted.base = coalesce(
                    (
                        SELECT sessions.revision FROM sessions
                        WHERE sessions.tenant = wanted.tenant
                        AND sessions.session_id = wanted.session_id
                    ), 0
                )
            ) THEN
                RAISE EXCEPTION 'a session has changes after its head' USING ERRCODE = 'XX001';
            END IF;
            RAISE EXCEPTION 'another transaction made a session first' USING ERRCODE = '40001';
        END IF;

        INSERT INTO sessions (
            tenant, session_id, user_id, revision, create_us, update_us, log_label, state
        )
        SELECT wanted.tenant, wanted.session_id, wanted.user_id, wanted.base + 1, wanted.time_us,
               wanted.time_us, greatest(write_label, wanted.label), wanted.state
        FROM unnest(
                 p_tenants, p_session_ids, p_bases, p_user_ids, p_times, p_states, labels, refusals
             ) AS wanted (tenant, session_id, base, user_id, time_us, state, label, refusal)
        WHERE wanted.refusal IS NULL
        ON CONFLICT (tenant, session_id) DO UPDATE
        SET user_id = excluded.user_id,
            revision = excluded.revision,
            update_us = excluded.update_us,
            log_label = excluded.log_label,
            state = excluded.state
        WHERE sessions.revision = excluded.revision - 1;

        GET DIAGNOSTICS written_rows = ROW_COUNT;
        IF written_rows <> wanted_rows THEN
            RAISE EXCEPTION 'another transaction changed a session' USING ERRCODE = '40001';
        END IF;

        IF cardinality(p_task_ids) > 0 THEN
            -- create_us stays: it is the task's place in its list.
            INSERT INTO tasks (
                tenant, task_id, session_id, user_id, status, create_us, update_us, expire_us, data
            )
            SELECT wanted.tenant, wanted.task_id, wanted.session_id, wanted.user_id,
                   wanted.status, wanted.create_us, wanted.update_us, wanted.expire_us, wanted.data
            FROM unnest(
                     p_task_items, p_task_tenants, p_task_ids, p_task_session_ids, p_task_user_ids,
                     p_task_statuses, p_task_creates, p_task_updates, p_task_expires, p_task_data
                 ) AS wanted (
                     item, tenant, task_id, session_id, user_id, status, create_us, update_us,
                     expire_us, data
                 )
            WHERE refusals[wanted.item] IS NULL
            ON CONFLICT (tenant, task_id) DO UPDATE
            SET user_id = excluded.user_id,
                status = excluded.status,
                update_us = excluded.update_us,
                expire_us = excluded.expire_us,
                data = excluded.data
            WHERE tasks.session_id = excluded.session_id;

            GET DIAGNOSTICS written_rows = ROW_COUNT;
            SELECT count(*) INTO wanted_rows
            FROM unnest(p_task_items) AS wanted (item)
            WHERE refusals[wanted.item] IS NULL;
            IF written_rows <> wanted_rows THEN
                RAISE EXCEPTION 'another transaction took a task first' USING ERRCODE = '40001';
            END IF;
        END IF;
    END IF;

    IF array_remove(refusals, NULL) <> '{}' THEN
        RETURN QUERY
        SELECT wanted.item, wanted.refusal, coalesce(seen.revision, wanted.revision),
               seen.time_us, seen.method, seen.request_id, seen.actor, seen.fingerprint,
               seen.events, seen.answer, foreign_task.task_id, foreign_task.session_id
        FROM unnest(
                 p_tenants, p_session_ids, p_methods, p_request_ids, p_actors, revisions, refusals
             ) WITH ORDINALITY
             AS wanted (tenant, session_id, method, request_id, actor, revision, refusal, item)
        LEFT JOIN LATERAL (
            SELECT changes.*
            FROM changes
            WHERE wanted.refusal = 'seen'
            AND changes.tenant = wanted.tenant
            AND changes.session_id = wanted.session_id
            AND changes.request_id = wanted.request_id
            AND changes.method = wanted.method
            AND changes.actor = wanted.actor
            AND changes.request_id <> ''
        ) AS seen ON true
        LEFT JOIN LATERAL (
            SELECT tasks.task_id, tasks.session_id
            FROM unnest(p_task_items, p_task_tenants, p_task_ids) AS mine (item, tenant, task_id)
            JOIN tasks ON tasks.tenant = mine.tenant AND tasks.task_id = mine.task_id
            WHERE wanted.refusal = 'taken'
            AND mine.item = wanted.item
            AND tasks.session_id <> wanted.session_id
        ) AS foreign_task ON true
        WHERE wanted.refusal IS NOT NULL;
    END IF;
END
$$;

CREATE FUNCTION append_audit(
    p_tenants text[],
    p_session_ids text[],
    p_times bigint[],
    p_revisions bigint[],
    p_kinds text[],
    p_request_ids text[],
    p_user_ids text[],
    p_data bytea[]
) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    write_label bigint := own_label();
BEGIN
    PERFORM be_durable();
    INSERT INTO audit (
        label, tenant, session_id, time_us, revision, kind, request_id, user_id, data
    )
    SELECT write_label, entry.*
    FROM unnest(
        p_tenants, p_session_ids, p_times, p_revisions, p_kinds, p_request_ids, p_user_ids, p_data
    ) AS entry;
END
$$;

CREATE FUNCTION put_setting(p_tenant text, p_name text, p_value bytea) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM be_durable();
    INSERT INTO settings (tenant, name, value) VALUES (p_tenant, p_name, p_value)
    ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value;
END
$$;

CREATE FUNCTION write_probe() RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM be_durable();
    UPDATE probes SET writes = writes + 1;
END
$$;

-- Brings the log's labels above all that are stored, if the server's transaction numbers are not:
-- the data is then a dump from another server. Answers whether it had to.
CREATE FUNCTION settle_log() RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    ahead bigint;
BEGIN
    SELECT greatest((SELECT max(label) FROM changes), (SELECT max(label) FROM audit))
           - (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + log_offset) + 1
    INTO ahead
    FROM store;
    IF ahead IS NULL OR ahead <= 0 THEN
        RETURN false;
    END IF;
    -- Looked at again under the row's lock: several replicas may start at once.
    PERFORM FROM store FOR UPDATE;
    PERFORM be_durable();
    UPDATE store
    SET log_offset = log_offset + greatest(
        0,
        greatest((SELECT max(label) FROM changes), (SELECT max(label) FROM audit))
        - (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + log_offset) + 1
    );
    RETURN true;
END
$$;
