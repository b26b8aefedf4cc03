-- What is done to sessions when nobody calls: time-outs that fall due, and who sees to them.

-- When something of the session falls due; NULL = nothing does.
ALTER TABLE sessions ADD COLUMN due_us INTEGER;

CREATE INDEX sessions_by_due ON sessions (due_us) WHERE due_us IS NOT NULL;

CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until_us INTEGER NOT NULL
) WITHOUT ROWID;
