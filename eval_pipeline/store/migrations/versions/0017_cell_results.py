"""A view for SQL: a row a cell, as it was recorded. Scores are no matter of SQL: policy, rubric and votes decide them."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.execute(VIEW)


VIEW = """
CREATE VIEW evals.cell_results AS
SELECT
    c.key AS cell, c.experiment_id AS experiment, e.name AS experiment_name,
    split_part(part.of_case, '.', 1) AS world, part.of_case AS "case", part.of_arm AS arm, part.of_trial::int AS trial,
    e.run_lock ->> 'app' AS app, e.run_lock ->> 'backend' AS backend,
    arm.it ->> 'commit' AS "commit", arm.it ->> 'tree' AS tree, arm.it -> 'config' AS config,
    e.run_lock -> 'worlds' ->> split_part(part.of_case, '.', 1) AS snapshot,
    c.cell_digest, e.run_digest AS run_lock, e.score_digest AS score_lock,
    c.state, c.outcome, a.error_class, a.error,
    tried.n AS attempts, tried.n_discarded, CASE WHEN a.cell_key <> c.key THEN a.cell_key END AS adopted_from,
    a.agent_started_at AS started_at, a.ended_at,
    used.input_uncached, used.cache_read, used.cache_write_5m, used.cache_write_1h, used.output AS output_tokens,
    used.reasoning AS reasoning_tokens, used.calls AS model_calls, a.usage_source,
    a.cost_usd, a.price_version, tried.overhead_usd, tried.n_overhead_unknown, judged.judge_cost_usd,
    a.sandbox_cost_usd, a.sandbox_s, a.latency_s, a.bundle, e.archived_at
FROM evals.cells c
JOIN evals.experiments e ON e.id = c.experiment_id
CROSS JOIN LATERAL (
    SELECT split_part(c.key, '/', 2) AS of_case, split_part(c.key, '/', 3) AS of_arm, split_part(c.key, '/', 4) AS of_trial
) part
LEFT JOIN LATERAL (
    SELECT one AS it FROM jsonb_array_elements(e.run_lock -> 'arms') one WHERE one ->> 'name' = part.of_arm
) arm ON true
LEFT JOIN evals.attempts a ON a.id = c.attempt_id
LEFT JOIN LATERAL (
    SELECT sum((u ->> 'input_uncached')::bigint) AS input_uncached, sum((u ->> 'cache_read')::bigint) AS cache_read,
        sum((u ->> 'cache_write_5m')::bigint) AS cache_write_5m, sum((u ->> 'cache_write_1h')::bigint) AS cache_write_1h,
        sum((u ->> 'output')::bigint) AS output, sum((u ->> 'reasoning')::bigint) AS reasoning, sum((u ->> 'calls')::bigint) AS calls
    FROM jsonb_array_elements(CASE jsonb_typeof(a.usage) WHEN 'array' THEN a.usage ELSE '[]' END) u
) used ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS n, count(*) FILTER (WHERE o.discarded IS NOT NULL) AS n_discarded,
        coalesce(sum(o.cost_usd) FILTER (WHERE o.id IS DISTINCT FROM c.attempt_id), 0) AS overhead_usd,
        count(*) FILTER (WHERE o.id IS DISTINCT FROM c.attempt_id AND o.ended_at IS NOT NULL AND o.cost_usd IS NULL) AS n_overhead_unknown
    FROM evals.attempts o WHERE o.cell_key = c.key
) tried
CROSS JOIN LATERAL (
    SELECT CASE WHEN count(*) = count(j.cost_usd) THEN coalesce(sum(j.cost_usd), 0) END AS judge_cost_usd
    FROM evals.judge_calls j WHERE j.experiment_id = c.experiment_id AND j.cell_key = c.key
) judged
"""
