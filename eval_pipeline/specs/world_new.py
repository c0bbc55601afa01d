"""A new world to start from: small, whole, and right as it stands."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import yaml

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library, given_name

CASE = "notice-period"
_LEASE = """\
# Lease of the Kiel terminal

Between Harbour Logistics GmbH (tenant) and Kiel Port Estates AG (landlord), dated 3 February 2024.

1. The lease ends on 31 December 2029.
2. Either party may end it earlier with six months' notice to the end of a quarter.
3. A change of control of the tenant needs the landlord's consent.
"""
_PERMISSIONS = """\
{
  "default": ["a.associate"],
  "rules": [
    {"match": "documents/01-*", "readers": ["a.associate"]}
  ]
}
"""
_CASE = f"""\
id: {CASE}
prompt: With how much notice can the Kiel lease be ended? Answer in one sentence and name the document.
limits: {{wall_s: 300, cost_usd: 0.5}}
tags: [lookup]
reference: Six months to the end of a quarter (clause 2 of the lease).
rubric:
  pass_at: 0.5
  criteria:
  - {{id: period, text: Says six months, points: 2, check: {{any: [{{contains: six months}}, {{contains: 6 months}}]}}}}
  - {{id: wrong-date, text: Gives the end of the term as the answer, points: -1, check: {{contains: 31 December 2029}}}}
"""
_TABLES = {
    "matters": [{"id": "m-1", "title": "Kiel terminal", "client": "Harbour Logistics GmbH", "user": "a.associate"}],
    "users": [{"id": "a.associate", "name": "A. Associate", "role": "associate"}],
}


def new_world(library: Library, name: str, title: str | None) -> Path:
    """Write the skeleton and return its folder; there is nothing, or all of it. Raises SpecError when the name can't be taken."""
    given_name(name)
    target = library.root / "worlds" / name
    if target.exists():
        raise SpecError(f"{library.shown(target)} is there already", hint="take another name, or remove the folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    try:
        _write(unfinished, name, title or name)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return target


def _write(folder: Path, name: str, title: str) -> None:
    head = yaml.safe_dump({"id": name, "title": title}, sort_keys=False, allow_unicode=True)
    parts = (
        "documents: documents/\n"
        "database: database/ # one JSONL file a table; give each row an id\n"
        "permissions: permissions.yaml # read by the app; as JSON: {rules: [{match, readers}], default}; the first rule that matches decides\n"
    )
    texts = {
        "world.yaml": head + parts + "# blobs: blobs/\n",
        "documents/01-lease-kiel.md": _LEASE,
        "permissions.yaml": _PERMISSIONS,
        f"cases/{CASE}.yaml": _CASE,
    }
    texts |= {f"database/{table}.jsonl": "".join(json.dumps(row) + "\n" for row in rows) for table, rows in _TABLES.items()}
    for path, text in texts.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
