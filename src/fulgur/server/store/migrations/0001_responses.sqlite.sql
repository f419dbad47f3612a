-- As shipped before migrations were numbered: databases from then have these tables already.
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, parent TEXT,
    response BLOB NOT NULL, input BLOB NOT NULL, events BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_created ON responses (created);
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER NOT NULL, owner TEXT NOT NULL, model TEXT NOT NULL, tier TEXT NOT NULL,
    answers INTEGER NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL,
    cost REAL NOT NULL, PRIMARY KEY (day, owner, model, tier)) WITHOUT ROWID;
