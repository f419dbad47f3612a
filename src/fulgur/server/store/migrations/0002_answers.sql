-- One row an answer, so that an end that is committed twice counts once. After a week the rows become a sum in `usage`.
-- A later attempt at an answer writes its row first, as `running`: from then on no earlier attempt can end it.
CREATE TABLE answers (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, model TEXT NOT NULL, tier TEXT NOT NULL, status TEXT NOT NULL,
    attempt BIGINT NOT NULL, created BIGINT NOT NULL,
    input BIGINT NOT NULL, cached BIGINT NOT NULL, output BIGINT NOT NULL, cost DOUBLE PRECISION NOT NULL);
CREATE INDEX answers_by_created ON answers (created);
