CREATE TABLE keys (
    name TEXT PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, requests_per_minute BIGINT NOT NULL,
    tokens_per_minute BIGINT NOT NULL, tokens_per_day BIGINT NOT NULL, created BIGINT NOT NULL);
