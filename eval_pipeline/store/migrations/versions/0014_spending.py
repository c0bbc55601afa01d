"""Who spends: what is spent in a calendar month, what may be, and more that a budget can bound."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(COUNTED)


TABLES = """
ALTER TABLE evals.installation
    ADD COLUMN monthly_cap_usd NUMERIC,
    ADD COLUMN confirm_above_usd NUMERIC DEFAULT 100;
ALTER TABLE evals.experiments
    ADD COLUMN created_by TEXT,
    ADD COLUMN budget_cells INTEGER,
    ADD COLUMN budget_wall_s DOUBLE PRECISION,
    ADD COLUMN begun_cells INTEGER DEFAULT 0 NOT NULL;
UPDATE evals.experiments e SET begun_cells = (
    select count(*) from evals.cells c
    where c.experiment_id = e.id and exists (select 1 from evals.attempts a where a.cell_key = c.key));
CREATE TABLE evals.months (month DATE PRIMARY KEY, committed_usd NUMERIC DEFAULT 0 NOT NULL);
INSERT INTO evals.months (month, committed_usd)
    select date_trunc('month', at at time zone 'UTC')::date, sum(usd) from (
        select created_at as at, coalesce(cost_usd, reserved_usd) + coalesce(sandbox_cost_usd, reserved_sandbox_usd) as usd
        from evals.attempts
        union all select started_at, coalesce(cost_usd, reserved_usd) from evals.judge_calls
    ) spent group by 1;
"""

# Whatever writes an attempt or a judge's call is counted in the month in which it began, at the end of its transaction: so the month's
# row is the last that is locked, and nobody waits in a circle
COUNTED = """
CREATE FUNCTION evals.month_of(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE
AS $$ select date_trunc('month', at at time zone 'UTC')::date $$;

CREATE FUNCTION evals.count_in_month(at timestamptz, more numeric) RETURNS void LANGUAGE sql AS $$
    insert into evals.months (month, committed_usd) values (evals.month_of(at), more)
    on conflict (month) do update set committed_usd = evals.months.committed_usd + excluded.committed_usd
$$;

CREATE FUNCTION evals.month_has_room(more numeric) RETURNS boolean LANGUAGE plpgsql AS $$
declare cap numeric; spent numeric;
begin
    select monthly_cap_usd into cap from evals.installation;
    if cap is null then return true; end if;
    insert into evals.months (month) values (evals.month_of(now())) on conflict do nothing;
    select committed_usd into spent from evals.months where month = evals.month_of(now()) for update;
    return spent + more <= cap;
end $$;

CREATE FUNCTION evals.attempt_spends() RETURNS trigger LANGUAGE plpgsql AS $$
declare more numeric;
begin
    more = coalesce(new.cost_usd, new.reserved_usd) + coalesce(new.sandbox_cost_usd, new.reserved_sandbox_usd);
    if tg_op = 'UPDATE' then
        more = more - coalesce(old.cost_usd, old.reserved_usd) - coalesce(old.sandbox_cost_usd, old.reserved_sandbox_usd);
    end if;
    if more <> 0 then perform evals.count_in_month(new.created_at, more); end if;
    return null;
end $$;
CREATE CONSTRAINT TRIGGER attempt_spends AFTER INSERT OR UPDATE ON evals.attempts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evals.attempt_spends();

CREATE FUNCTION evals.judge_spends() RETURNS trigger LANGUAGE plpgsql AS $$
declare more numeric;
begin
    more = coalesce(new.cost_usd, new.reserved_usd);
    if tg_op = 'UPDATE' then more = more - coalesce(old.cost_usd, old.reserved_usd); end if;
    if more <> 0 then perform evals.count_in_month(new.started_at, more); end if;
    return null;
end $$;
CREATE CONSTRAINT TRIGGER judge_spends AFTER INSERT OR UPDATE ON evals.judge_calls
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evals.judge_spends();
"""
