-- compatible-from: 1
--
-- An append says when the session began that it was decided on: another one may have been begun
-- under its name, after a purge, and be at the same revision. A release before this one calls
-- append_group as in 0002, which compares the revision alone.

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
    p_dues bigint[],
    p_begun bigint[]
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
    bases bigint[];
BEGIN
    -- The locks are those that 0002 takes next, in the same order. A base of -1 is that of no
    -- session: such an append is a conflict, unless it is a repeat.
    SELECT array_agg(
               CASE
                   WHEN wanted.begun IS NULL OR head.create_us = wanted.begun THEN wanted.base
                   ELSE -1
               END
               ORDER BY wanted.item
           )
    INTO bases
    FROM unnest(p_tenants, p_session_ids, p_bases, p_begun) WITH ORDINALITY
        AS wanted (tenant, session_id, base, begun, item)
    LEFT JOIN LATERAL (
        SELECT sessions.create_us
        FROM sessions
        WHERE sessions.tenant = wanted.tenant AND sessions.session_id = wanted.session_id
        FOR NO KEY UPDATE
    ) AS head ON true;

    RETURN QUERY SELECT * FROM append_group(
        p_tenants, p_session_ids, bases, p_user_ids, p_states, p_times, p_methods, p_request_ids,
        p_actors, p_fingerprints, p_events, p_answers, p_task_items, p_task_tenants,
        p_task_session_ids, p_task_ids, p_task_user_ids, p_task_statuses, p_task_creates,
        p_task_updates, p_task_expires, p_task_data, p_dues
    );
END
$$;
