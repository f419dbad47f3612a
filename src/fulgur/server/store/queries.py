"""The SQL that both databases understand, with PostgreSQL's `$1`; `for_sqlite` converts it."""

from __future__ import annotations

import re

ANSWER = "id, owner, model, tier, status, attempt, created, input, cached, output, cost"

# An answer ends once, and an attempt that a later one has overtaken cannot end it: its row is `running` until then.
END = f"""
INSERT INTO answers ({ANSWER}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, model = excluded.model, tier = excluded.tier,
    status = excluded.status, attempt = excluded.attempt, created = excluded.created, input = excluded.input,
    cached = excluded.cached, output = excluded.output, cost = excluded.cost
WHERE answers.status = 'running' AND answers.attempt <= excluded.attempt
"""
FENCE = f"""
INSERT INTO answers ({ANSWER}) VALUES ($1, '', '', '', 'running', $2, $3, 0, 0, 0, 0)
ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt
WHERE answers.status = 'running' AND answers.attempt <= excluded.attempt
"""
ENDED_BY = "SELECT attempt FROM answers WHERE id = $1 AND status <> 'running'"

GET = "SELECT response, input, parent FROM responses WHERE id = $1 AND owner = $2"
EVENTS = "SELECT events FROM responses WHERE id = $1 AND owner = $2"
DELETE = "DELETE FROM responses WHERE id = $1 AND owner = $2"
CHAIN = """
WITH RECURSIVE chain (id, parent, response, input, depth) AS (
    SELECT id, parent, response, input, 0 FROM responses WHERE id = $1 AND owner = $2
    UNION ALL
    SELECT r.id, r.parent, r.response, r.input, chain.depth + 1
    FROM responses r JOIN chain ON r.id = chain.parent WHERE r.owner = $2)
SELECT response, input, parent FROM chain ORDER BY depth
"""

# The sum of folded and unfolded usage since the first day ($1) or second ($2).
USAGE = """
SELECT owner, model, tier, SUM(answers), SUM(input), SUM(cached), SUM(output), SUM(cost) FROM (
    SELECT owner, model, tier, answers, input, cached, output, cost FROM usage WHERE day >= $1
    UNION ALL
    SELECT owner, model, tier, 1, input, cached, output, cost FROM answers WHERE created >= $2 AND status <> 'running')
    AS used
GROUP BY owner, model, tier ORDER BY SUM(cost) DESC, SUM(output) DESC
"""
FOLD = """
INSERT INTO usage (day, owner, model, tier, answers, input, cached, output, cost)
SELECT created / 86400, owner, model, tier, COUNT(*), SUM(input), SUM(cached), SUM(output), SUM(cost)
FROM answers WHERE created < $1 AND status <> 'running' GROUP BY created / 86400, owner, model, tier
ON CONFLICT (day, owner, model, tier) DO UPDATE SET answers = usage.answers + excluded.answers,
    input = usage.input + excluded.input, cached = usage.cached + excluded.cached,
    output = usage.output + excluded.output, cost = usage.cost + excluded.cost
"""
FOLDED = "DELETE FROM answers WHERE created < $1"

KEY = "name, sha256, requests_per_minute, tokens_per_minute, tokens_per_day"
KEYS = f"SELECT {KEY} FROM keys ORDER BY created, name"
# No row is changed when another key has the name. The same key may be added again: its first commit may have gone
# through although the connection died before it was acknowledged.
ADD_KEY = f"""
INSERT INTO keys ({KEY}, created) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET name = excluded.name WHERE keys.sha256 = excluded.sha256
"""
REVOKE_KEY = "DELETE FROM keys WHERE name = $1"


def for_sqlite(sql: str) -> str:
    return re.sub(r"\$(\d+)", r"?\1", sql)
