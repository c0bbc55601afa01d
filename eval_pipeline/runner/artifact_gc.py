"""Artifacts that nothing refers to any more: marked at one look, removed at a later one."""

from __future__ import annotations

from dataclasses import dataclass

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifact_refs import give_up, mark, referenced, take_back
from eval_pipeline.store.artifacts import open_store
from eval_pipeline.store.records import Records

GRACE_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Collected:
    """removed: digests of what was removed, or would be. marked: unreferenced ones that wait for their time."""

    n_stored: int
    n_referenced: int
    marked: int
    removed: list[str]
    removed_bytes: int


def collect(settings: Settings, records: Records, *, grace_s: float = GRACE_S, dry_run: bool = False) -> Collected:
    """Remove what nothing referred to at each look for `grace_s` seconds, and that nobody put within them.

    So an upload is safe until its row is written, however long that takes short of the grace. Raises SpecError when another
    installation keeps artifacts in the same store: what it refers to can't be seen from here.
    """
    store, installation = open_store(settings), records.ledger.installation_id()
    others = store.claim(installation) - {installation}
    if others:
        raise SpecError(
            f"the artifact store is shared with the installations {', '.join(sorted(others))}, so nothing is removed from it",
            hint="give each ledger a store of its own; if one is no more, remove its file under owners/ in the store",
        )
    days = settings.retention.delete_after_days
    given_up_s = None if days is None else days * 86400.0
    stored = {one.digest: one for one in store.listing()}  # listed first: what is put after is not in it
    needed = referenced(records.database, given_up_s)
    old = {digest for digest, one in stored.items() if digest not in needed and one.age_s > grace_s}
    name = settings.artifacts_url or str(settings.state_dir / "artifacts")
    ages = {} if dry_run else mark(records.database, name, old)
    due = sorted(old) if dry_run else [digest for digest, age_s in sorted(ages.items()) if age_s >= grace_s]
    if due and not dry_run:
        give_up(records.database, due)
        needed = referenced(records.database, given_up_s)
        take_back(records.database, needed.intersection(due))
    removed = [digest for digest in due if digest not in needed and (dry_run or store.remove(digest, grace_s))]
    return Collected(
        n_stored=len(stored),
        n_referenced=len(stored.keys() & needed),
        marked=len(old) - len(removed),
        removed=removed,
        removed_bytes=sum(stored[digest].size_bytes for digest in removed),
    )
