-- compatible-from: 1
--
-- What is done to sessions when nobody calls: time-outs that fall due and who sees to them; taking
-- content out of sessions; deleting sessions.
--
-- A release before this one calls append_group without due times. It then stores that nothing is
-- due: such a session's time-outs are seen to at its next message, as they always were.

ALTER TABLE sessions ADD COLUMN due_us bigint;

CREATE INDEX sessions_by_due ON sessions (due_us) WHERE due_us IS NOT NULL;

CREATE TABLE leases (
    name text COLLATE "C" PRIMARY KEY,
    holder text COLLATE "C" NOT NULL,
    until_us bigint NOT NULL
) WITH (fillfactor = 10);

-- As in 0001, with a due time for each session.
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
    p_task_data bytea[],
    p_dues bigint[]
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
            tenant, session_id, user_id, revision, create_us, update_us, log_label, state, due_us
        )
        SELECT wanted.tenant, wanted.session_id, wanted.user_id, wanted.base + 1, wanted.time_us,
               wanted.time_us, greatest(write_label, wanted.label), wanted.state, wanted.due_us
        FROM unnest(
                 p_tenants, p_session_ids, p_bases, p_user_ids, p_times, p_states, labels,
                 refusals, p_dues
             ) AS wanted (
                 tenant, session_id, base, user_id, time_us, state, label, refusal, due_us
             )
        WHERE wanted.refusal IS NULL
        ON CONFLICT (tenant, session_id) DO UPDATE
        SET user_id = excluded.user_id,
            revision = excluded.revision,
            update_us = excluded.update_us,
            log_label = excluded.log_label,
            state = excluded.state,
            due_us = excluded.due_us
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

-- For the release before.
CREATE OR REPLACE FUNCTION append_group(
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
) LANGUAGE sql
SET search_path FROM CURRENT
AS $$
    SELECT * FROM append_group(
        p_tenants, p_session_ids, p_bases, p_user_ids, p_states, p_times, p_methods, p_request_ids,
        p_actors, p_fingerprints, p_events, p_answers, p_task_items, p_task_tenants,
        p_task_session_ids, p_task_ids, p_task_user_ids, p_task_statuses, p_task_creates,
        p_task_updates, p_task_expires, p_task_data,
        array_fill(NULL::bigint, ARRAY[cardinality(p_tenants)])
    )
$$;

-- Whether the lease is now the holder's until p_until (0 = it was given up).
CREATE FUNCTION acquire_lease(p_name text, p_holder text, p_now bigint, p_until bigint)
RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM be_durable();
    INSERT INTO leases (name, holder, until_us) VALUES (p_name, p_holder, p_until)
    ON CONFLICT (name) DO UPDATE
    SET holder = excluded.holder, until_us = excluded.until_us
    WHERE leases.holder = excluded.holder OR leases.until_us <= p_now;
    RETURN FOUND;
END
$$;

-- What follows takes the session's lock first, as append_group does, so that an append to the
-- same session comes before or after them and nothing waits in a circle.

-- Blanks the session's tasks and audit entries, and answers the head's revision, 0 = no session.
CREATE FUNCTION blank_beside(p_tenant text, p_session_id text) RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    head_revision bigint;
BEGIN
    PERFORM be_durable();
    SELECT revision INTO head_revision FROM sessions
    WHERE tenant = p_tenant AND session_id = p_session_id
    FOR NO KEY UPDATE;
    UPDATE tasks SET user_id = '', data = ''
    WHERE tenant = p_tenant AND session_id = p_session_id AND create_us >= 0
    AND (user_id <> '' OR data <> '');
    UPDATE audit SET user_id = '', data = ''
    WHERE tenant = p_tenant AND session_id = p_session_id AND position > 0
    AND (user_id <> '' OR data <> '');
    RETURN coalesce(head_revision, 0);
END
$$;

-- Blanks the changes with p_after < revision <= p_upto, and answers how many were not blank.
CREATE FUNCTION blank_changes(
    p_tenant text, p_session_id text, p_after bigint, p_upto bigint, p_blank bytea
) RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    blanked bigint;
BEGIN
    PERFORM be_durable();
    PERFORM FROM sessions WHERE tenant = p_tenant AND session_id = p_session_id
    FOR NO KEY UPDATE;
    UPDATE changes SET events = p_blank, answer = '', fingerprint = ''
    WHERE tenant = p_tenant AND session_id = p_session_id
    AND revision > 0 AND revision > p_after AND revision <= p_upto
    AND (events <> p_blank OR answer <> '' OR fingerprint <> '');
    GET DIAGNOSTICS blanked = ROW_COUNT;
    RETURN blanked;
END
$$;

-- Forgets whose session it is.
CREATE FUNCTION blank_owner(p_tenant text, p_session_id text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM be_durable();
    UPDATE sessions SET user_id = '' WHERE tenant = p_tenant AND session_id = p_session_id;
END
$$;

-- Removes a session whose head is at p_revision, 0 = there is none. Answers where the head is:
-- anything but p_revision, and nothing was removed.
CREATE FUNCTION delete_session(p_tenant text, p_session_id text, p_revision bigint) RETURNS bigint
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    head_revision bigint;
BEGIN
    PERFORM be_durable();
    SELECT revision INTO head_revision FROM sessions
    WHERE tenant = p_tenant AND session_id = p_session_id
    FOR UPDATE;
    head_revision := coalesce(head_revision, 0);
    IF head_revision <> p_revision THEN
        RETURN head_revision;
    END IF;
    UPDATE audit SET user_id = '', data = ''
    WHERE tenant = p_tenant AND session_id = p_session_id AND position > 0
    AND (user_id <> '' OR data <> '');
    DELETE FROM changes
    WHERE tenant = p_tenant AND session_id = p_session_id AND revision > 0;
    DELETE FROM tasks
    WHERE tenant = p_tenant AND session_id = p_session_id AND create_us >= 0;
    DELETE FROM sessions WHERE tenant = p_tenant AND session_id = p_session_id;
    RETURN head_revision;
END
$$;
