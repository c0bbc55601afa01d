"""The ledger's tables: Postgres schema `evals`. Migrations under store/migrations/ make them; a test holds the two together."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

from eval_pipeline.store import schema_base, schema_benchmarks, schema_research, schema_reviews

SCHEMA = schema_base.SCHEMA
metadata = schema_base.metadata
Time, Money, _now = schema_base.Time, schema_base.Money, schema_base.now
benchmark_entries = schema_benchmarks.benchmark_entries
researches, research_journal = schema_research.researches, schema_research.research_journal
research_runs = schema_research.research_runs
reviews, review_items, labels = schema_reviews.reviews, schema_reviews.review_items, schema_reviews.labels

_limits = (
    sa.Column("monthly_cap_usd", Money),
    sa.Column("confirm_above_usd", Money, server_default="100"),
)  # null: no such limit
_installation_id = sa.Column("id", UUID(as_uuid=False), primary_key=True)
installation = sa.Table("installation", metadata, _installation_id, _now("created_at"), *_limits)

# spent and reserved by what began in the month; it is named by its first day, UTC
_committed = sa.Column("committed_usd", Money, nullable=False, server_default="0")
months = sa.Table("months", metadata, sa.Column("month", sa.Date, primary_key=True), _committed)

hosts = sa.Table(
    "hosts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("place", sa.Text, nullable=False),  # machine and state directory, whatever the boot
    sa.Column("hostname", sa.Text, nullable=False),
    _now("created_at"),
)

engines = sa.Table(
    "engines",
    metadata,
    sa.Column("id", UUID(as_uuid=False), primary_key=True),
    sa.Column("host_id", sa.Text, sa.ForeignKey(hosts.c.id), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("run_id", sa.Text),
    _now("started_at"),
    sa.Column("lease_until", Time, nullable=False),
    sa.Column("ended_at", Time),
    sa.Column("kind", sa.Text, nullable=False, server_default="engine"),  # or `persist`: a worker that only persists
    sa.Column("doing", JSONB),  # of its cells in flight, by key: what each waits for, and since when
)

buckets = sa.Table(
    "buckets",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("tokens", sa.Double, nullable=False),  # below 0: taken before they are there
    sa.Column("counted_at", Time, nullable=False),
)

build_leases = sa.Table(
    "build_leases",
    metadata,
    sa.Column("place", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("lease_until", Time, nullable=False),
)

limits = sa.Table(
    "limits", metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Integer, nullable=False)
)

grants = sa.Table(
    "grants",
    metadata,
    sa.Column("engine_id", UUID(as_uuid=False), sa.ForeignKey(engines.c.id), primary_key=True),
    sa.Column("name", sa.Text, sa.ForeignKey(limits.c.name), primary_key=True),
    sa.Column("amount", sa.Integer, nullable=False),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("world", sa.Text, nullable=False),
    sa.Column("archive", sa.Text, nullable=False),
    sa.Column("archive_bytes", sa.BigInteger, nullable=False),
    sa.Column("manifest", JSONB, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("n_files", sa.Integer, nullable=False),
    sa.Column("made_with", JSONB),  # the app, commit and schema version it was saved from; null when it was written by hand
    _now("created_at"),
)

score_locks = sa.Table(
    "score_locks",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("lock", JSONB, nullable=False),
    _now("created_at"),
)

experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("run_lock", JSONB, nullable=False),
    sa.Column("run_digest", sa.Text, nullable=False, unique=True),
    sa.Column("source_digest", sa.Text, nullable=False),
    sa.Column("score_digest", sa.Text, sa.ForeignKey(score_locks.c.digest), nullable=False),
    sa.Column("repo", sa.Text, nullable=False),
    sa.Column("baseline", sa.Text),
    sa.Column("budget_usd", Money),
    sa.Column("committed_usd", Money, nullable=False, server_default="0"),  # spent and reserved, over all attempts
    sa.Column("n_cells", sa.Integer, nullable=False),
    _now("created_at"),
    _now("ran_at"),  # when its file was run last
    sa.Column("cancel_requested_at", Time),
    sa.Column("archived_at", Time),
    sa.Column("restored_at", Time),  # when it was taken back from the archive last
    sa.Column("created_by", sa.Text),
    sa.Column("budget_cells", sa.Integer),
    sa.Column("budget_wall_s", sa.Double),
    sa.Column("begun_cells", sa.Integer, nullable=False, server_default="0"),  # that had an attempt, however it ended
    sa.Index("ix_experiments_source", "name", "source_digest"),
)

scorings = sa.Table(
    "scorings",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("experiment_id", sa.Text, sa.ForeignKey(experiments.c.id), nullable=False),
    sa.Column("score_digest", sa.Text, sa.ForeignKey(score_locks.c.digest), nullable=False),
    _now("created_at"),
    sa.Index("ix_scorings_experiment", "experiment_id", "id"),
)

cells = sa.Table(
    "cells",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("experiment_id", sa.Text, sa.ForeignKey(experiments.c.id), nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("cell_digest", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default="open"),
    sa.Column("outcome", sa.Text),
    sa.Column("attempt_id", sa.BigInteger),  # the attempt that counts, once there is one
    sa.Column("engine_id", UUID(as_uuid=False), sa.ForeignKey(engines.c.id)),
    sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("logged_attempt_id", sa.BigInteger),  # the attempt whose event Dagster has
    _now("updated_at"),
    sa.Index("ix_cells_experiment", "experiment_id", "ordinal"),
    sa.Index("ix_cells_digest", "cell_digest"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("cell_key", sa.Text, sa.ForeignKey(cells.c.key), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("sandbox", sa.Text, nullable=False),
    sa.Column("host_id", sa.Text, sa.ForeignKey(hosts.c.id), nullable=False),
    sa.Column("reserved_usd", Money, nullable=False, server_default="0"),
    _now("created_at"),
    sa.Column("agent_started_at", Time),
    sa.Column("deadline_at", Time),
    sa.Column("ended_at", Time),
    sa.Column("outcome", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("error_class", sa.Text),
    sa.Column("bundle", sa.Text),
    sa.Column("usage", JSONB),
    sa.Column("usage_source", sa.Text),
    sa.Column("cost_usd", Money),
    sa.Column("price_version", sa.Text),
    sa.Column("latency_s", sa.Double),
    sa.Column("evidence", JSONB),
    sa.Column("discarded", sa.Text),  # why a valid attempt no longer counts
    sa.Column("handover", JSONB),  # its agent's end; whoever has a place for it reads the output and ends the attempt
    sa.Column("reserved_sandbox_usd", Money, nullable=False, server_default="0"),
    sa.Column("sandbox_usd_per_s", Money),  # null: not known
    sa.Column("sandbox_rate", sa.Text),
    sa.Column("sandbox_started_at", Time),
    sa.Column("sandbox_s", sa.Double),  # from asked for to ended; null until it has ended
    sa.Column("sandbox_cost_usd", Money),
    sa.Column("given_up_at", Time),  # its experiment was archived for long, and what it left is removed
    sa.UniqueConstraint("cell_key", "number", name="uq_attempts_cell_number"),
    sa.Index("ix_attempts_bundle", "bundle"),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("request_digest", sa.Text, primary_key=True),
    sa.Column("judge_version", sa.Text, primary_key=True),
    sa.Column("vote", sa.Integer, primary_key=True),
    sa.Column("bundle", sa.Text, nullable=False),
    sa.Column("criterion", sa.Text, nullable=False),
    sa.Column("verdict", sa.Double),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    _now("created_at"),
    sa.Column("quotes", JSONB),  # what a judge quoted of the work
    sa.Index("ix_verdicts_bundle", "bundle"),
)

judge_requests = sa.Table(
    "judge_requests",
    metadata,
    sa.Column("question_digest", sa.Text, primary_key=True),  # of a criterion and a bundle, before the bundle is read
    sa.Column("request_digest", sa.Text, primary_key=True),  # of all that the judge reads
    sa.Column("unseen", JSONB, nullable=False),  # what it was told that it can't see
    _now("created_at"),
)

judge_calls = sa.Table(
    "judge_calls",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("experiment_id", sa.Text, sa.ForeignKey(experiments.c.id), nullable=False),  # that pays for it
    sa.Column("cell_key", sa.Text, nullable=False),
    sa.Column("criterion", sa.Text, nullable=False),
    sa.Column("request_digest", sa.Text, nullable=False),
    sa.Column("judge_version", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),  # whose limits it counts against
    sa.Column("reserved_usd", Money, nullable=False, server_default="0"),
    _now("started_at"),
    sa.Column("deadline_at", Time, nullable=False),  # after it nobody waits for the call any more
    sa.Column("ended_at", Time),
    sa.Column("status", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("usage", JSONB),
    sa.Column("cost_usd", Money),
    sa.Column("latency_s", sa.Double),
    sa.Index("ix_judge_calls_experiment", "experiment_id", "cell_key"),
    sa.Index("ix_judge_calls_open", "pool", postgresql_where=sa.text("ended_at IS NULL")),
)

layers = sa.Table(
    "layers",
    metadata,
    sa.Column("backend", sa.Text, primary_key=True),
    sa.Column("place", sa.Text, primary_key=True),  # where its ref means something: a host, a cloud environment
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("app", sa.Text, nullable=False),
    sa.Column("base", sa.Text, nullable=False),  # key of what the image stands on: interpreter and locked wheels, or a Dockerfile
    sa.Column("commit", sa.Text),  # null for a working tree
    sa.Column("tree", sa.Text, nullable=False),
    sa.Column("world", sa.Text),  # snapshot digest of a prepared layer
    sa.Column("parents", ARRAY(sa.Text), nullable=False),  # keys, lowest first
    sa.Column("ref", sa.Text, nullable=False),
    sa.Column("digest", sa.Text),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("built_s", sa.Double),
    sa.Column("state", sa.Text),  # artifact of the app's own dump of a prepared layer
    sa.Column("expires_at", Time),
    _now("created_at"),
    _now("used_at"),
    sa.Index("ix_layers_images", "backend", "place", "app", "kind"),
)

warm_sandboxes = sa.Table(
    "warm_sandboxes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("spec_digest", sa.Text, nullable=False),  # layers, world, manifest and secret versions: what a cell must match
    sa.Column("app", sa.Text, nullable=False),
    sa.Column("world", sa.Text, nullable=False),
    sa.Column("ready_s", sa.Double),  # from its creation to its services' answer; null while it starts
    sa.Column("expires_at", Time, nullable=False),
    sa.Column("attempt_id", sa.BigInteger),  # who took it
    _now("created_at"),
    sa.Index("ix_warm_sandboxes_spec", "spec_digest"),
)

secret_versions = sa.Table(
    "secret_versions",
    metadata,
    sa.Column("place", sa.Text, primary_key=True),  # where the value is kept: a machine and its state directory
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("phase", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),  # a keyed hash; the value stands nowhere in the ledger
    sa.Column("source", sa.Text, nullable=False),
    _now("synced_at"),
    _now("last_seen"),  # of a name's versions the one seen last is in use
    sa.Column("changed_at", Time),  # when the value came to be, by its source; null: the source does not know
)

modal_secrets = sa.Table(
    "modal_secrets",
    metadata,
    sa.Column("place", sa.Text, primary_key=True),  # a Modal environment and app
    sa.Column("name", sa.Text, primary_key=True),  # of the Secret there
    sa.Column("app", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),  # of all of it
    sa.Column("versions", JSONB, nullable=False),  # of each of its names
    _now("written_at"),
    _now("seen_at"),
)

artifact_marks = sa.Table(  # artifacts that nothing in the ledger referred to when somebody looked
    "artifact_marks",
    metadata,
    sa.Column("store", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    _now("marked_at"),
)

surveys = sa.Table(
    "surveys",
    metadata,
    sa.Column("backend", sa.Text, primary_key=True),
    sa.Column("place", sa.Text, primary_key=True),
    _now("surveyed_at"),
)

strays = sa.Table(  # sandboxes of this installation that nobody owned at the last survey of their place
    "strays",
    metadata,
    sa.Column("backend", sa.Text, primary_key=True),
    sa.Column("place", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("cell", sa.Text),
    _now("first_seen_at"),
    sa.Column("told_at", Time),  # when it was counted as leaked in a notice
)

notices = sa.Table(
    "notices",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    _now("created_at"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    _now("next_try_at"),  # also the lease of who is sending it
    sa.Column("sent_at", Time),
    sa.Column("given_up_at", Time),
    sa.Column("error", sa.Text),
)

HANDED_OVER = sa.and_(attempts.c.cell_key == cells.c.key, attempts.c.ended_at.is_(None), attempts.c.handover.is_not(None))
"""Of a cell and its attempt: the agent has ended, and whoever has a place for it brings the attempt to its end."""
