CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created BIGINT NOT NULL, parent TEXT,
    response BYTEA NOT NULL, input BYTEA NOT NULL, events BYTEA NOT NULL);
CREATE INDEX by_created ON responses (created);
CREATE TABLE usage (
    day BIGINT NOT NULL, owner TEXT NOT NULL, model TEXT NOT NULL, tier TEXT NOT NULL,
    answers BIGINT NOT NULL, input BIGINT NOT NULL, cached BIGINT NOT NULL, output BIGINT NOT NULL,
    cost DOUBLE PRECISION NOT NULL, PRIMARY KEY (day, owner, model, tier));
