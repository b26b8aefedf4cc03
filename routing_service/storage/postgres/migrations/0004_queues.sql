-- compatible-from: 1
--
-- Entries of queues: hints that a session has work for an agent or for people, and the leases on
-- them. They are put and dropped in the transaction of the change that gives or ends the work. A
-- release before this one writes none; the entries that are then missing are put back when a
-- session is read.

CREATE TABLE queue_entries (
    tenant text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    place_us bigint NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL DEFAULT '',
    worker text COLLATE "C" NOT NULL DEFAULT '',
    until_us bigint NOT NULL DEFAULT 0,
    attempt bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, queue, place_us, session_id, request_id)
-- Room for leases, which change no index.
) WITH (fillfactor = 70);

-- The present in microseconds, by this server's clock and not by when the transaction began.
CREATE FUNCTION clock_us() RETURNS bigint LANGUAGE sql
AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- A group in which some append has entries. The others call append_group as before.
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
    p_begun bigint[],
    p_entry_items bigint[],
    p_entry_acts text[],
    p_entry_tenants text[],
    p_entry_queues text[],
    p_entry_places bigint[],
    p_entry_session_ids text[],
    p_entry_request_ids text[]
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
    refused bigint[] := '{}';
BEGIN
    FOR item, refusal, revision, time_us, method, request_id, actor, fingerprint, events, answer,
        task_id, task_session_id
    IN SELECT * FROM append_group(
        p_tenants, p_session_ids, p_bases, p_user_ids, p_states, p_times, p_methods,
        p_request_ids, p_actors, p_fingerprints, p_events, p_answers, p_task_items,
        p_task_tenants, p_task_session_ids, p_task_ids, p_task_user_ids,
        p_task_statuses, p_task_creates, p_task_updates, p_task_expires, p_task_data,
        p_dues, p_begun
    ) LOOP
        refused := refused || item;
        RETURN NEXT;
    END LOOP;

    INSERT INTO queue_entries (tenant, queue, place_us, session_id, request_id)
    SELECT wanted.tenant, wanted.queue, wanted.place_us, wanted.session_id, wanted.request_id
    FROM unnest(
             p_entry_items, p_entry_acts, p_entry_tenants, p_entry_queues, p_entry_places,
             p_entry_session_ids, p_entry_request_ids
         ) AS wanted (item, act, tenant, queue, place_us, session_id, request_id)
    WHERE wanted.act = 'put' AND wanted.item <> ALL (refused)
    ON CONFLICT DO NOTHING;

    DELETE FROM queue_entries
    USING unnest(
             p_entry_items, p_entry_acts, p_entry_tenants, p_entry_queues, p_entry_places,
             p_entry_session_ids, p_entry_request_ids
         ) AS wanted (item, act, tenant, queue, place_us, session_id, request_id)
    WHERE wanted.act = 'drop' AND wanted.item <> ALL (refused)
    AND queue_entries.tenant = wanted.tenant
    AND queue_entries.queue = wanted.queue
    AND queue_entries.place_us = wanted.place_us
    AND queue_entries.session_id = wanted.session_id
    AND queue_entries.request_id = wanted.request_id;
END
$$;

-- Changes an entry's lease if it may be. The commit waits for no disk: a lease that is lost is
-- offered again.
CREATE FUNCTION lease_item(
    p_tenant text,
    p_queue text,
    p_place bigint,
    p_session_id text,
    p_request_id text,
    p_held text,
    p_token text,
    p_worker text,
    p_lease bigint
) RETURNS TABLE (token text, worker text, left_us bigint, attempt bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE queue_entries AS stored
    SET token = CASE WHEN p_lease > 0 THEN p_token ELSE '' END,
        worker = CASE WHEN p_lease > 0 THEN p_worker ELSE '' END,
        until_us = CASE WHEN p_lease > 0 THEN clock_us() + p_lease ELSE 0 END,
        attempt = CASE
            WHEN p_lease <= 0 THEN greatest(stored.attempt - 1, 0)
            WHEN p_held = '' THEN stored.attempt + 1
            ELSE stored.attempt
        END
    WHERE stored.tenant = p_tenant AND stored.queue = p_queue AND stored.place_us = p_place
    AND stored.session_id = p_session_id AND stored.request_id = p_request_id
    AND CASE
        WHEN p_held <> '' THEN stored.token = p_held
        ELSE stored.token = '' OR stored.until_us <= clock_us()
    END;
    RETURN QUERY
    SELECT stored.token, stored.worker, stored.until_us - clock_us(), stored.attempt
    FROM queue_entries AS stored
    WHERE stored.tenant = p_tenant AND stored.queue = p_queue AND stored.place_us = p_place
    AND stored.session_id = p_session_id AND stored.request_id = p_request_id;
END
$$;
