"""The example application in a git repository of a test's own, and a small world for it whose meaning the test knows by itself."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.project import Project

APP = Path(__file__).parents[2] / "examples" / "matter_desk"

USERS = [
    {"id": "a.lead", "name": "Ada Brook", "role": "partner", "desk": 4},
    {"id": "b.clerk", "name": "Benoît van der Meer", "email": "b@desk.example"},
    {"id": "c.guest", "name": "Quill"},
]
TABLES: dict[str, list[dict[str, Any]]] = {
    "users": USERS,
    "matters": [{"id": "m-1", "title": "Lease of the north quay", "user": "b.clerk", "status": "open"}],
    "playbook_rules": [{"id": "r-1", "matter": "m-1", "rule": "Name the clause."}],
    "past_chats": [
        {"id": "p-1", "matter": "m-1", "user": "b.clerk", "question": "When?", "answer": "In May."},
        {"id": "p-2", "matter": "m-1", "user": "a.lead", "question": "Who?", "answer": "Nobody.", "stars": 3},
    ],
    "time_entries": [{"id": "t-1", "hours": 1.25}, {"id": "t-2", "hours": 10**20}],
}
DOCUMENTS = {
    "documents/01-lease.md": b"# Lease\n\nThe notice period of the lease is 60 days.\n",
    "documents/02-letter.txt": "Der Kündigung fehlt die Frist.\n".encode(),
    "documents/closed/03-advice.md": b"# Advice\n\nPrivileged: settle below 40.\n",
    "documents/closed/04-index.md": b"# Index\n\nWhat is in this folder.\n",
    "blobs/scan.bin": bytes(range(256)) * 40,
}
PERMISSIONS: dict[str, Any] = {
    "default": ["a.lead", "b.clerk"],
    "rules": [
        {"match": "documents/closed/04-*", "readers": ["*"]},
        {"match": "documents/closed/*", "readers": ["a.lead"]},
        {"match": "blobs/*", "readers": ["b.clerk", "c.guest"]},
    ],
}
QUESTION = "Which notice period does the lease have?"
SAYS_60 = {"id": "says-60", "text": "Names the period", "points": 1, "check": {"contains": "60 days"}}


def may_read(user: str, path: str) -> bool:
    """By the world's own file, for this world alone."""
    readers = next((r["readers"] for r in PERMISSIONS["rules"] if fnmatch.fnmatchcase(path, r["match"])), PERMISSIONS["default"])
    return user in readers or "*" in readers


def readable(user: str) -> dict[str, str]:
    """path -> sha256 of what the user may read."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in DOCUMENTS.items() if may_read(user, path)}


def desk_project(root: Path, state_dir: Path) -> Project:
    """With the application as it lies in the work tree, not committed yet, and the world `w`; the app is called matter-desk."""
    project = Project(root, state_dir)
    (project.app / "evals.app.yaml").unlink()
    listed = ["git", "-C", str(APP), "ls-files", "-co", "--exclude-standard", "."]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines():
        if (APP / name).exists():
            (project.app / "desk" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(APP / name, project.app / "desk" / name)
    project.write("app.yaml", {"name": "matter-desk", "repo": "app", "path": "desk", "branch": "main"})
    shutil.rmtree(project.worlds / "worlds" / "w")
    desk_world(project, "w")
    return project


def desk_world(project: Project, name: str) -> None:
    parts = {"documents": "documents/", "database": "database/", "permissions": "permissions.yaml", "blobs": "blobs/"}
    project.write(f"worlds/{name}/world.yaml", {"id": name, "title": name, **parts})
    folder = project.worlds / "worlds" / name
    for path, data in DOCUMENTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    for table, rows in TABLES.items():
        project.write(f"worlds/{name}/database/{table}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    project.write(f"worlds/{name}/permissions.yaml", json.dumps(PERMISSIONS))


def edit(project: Project, changes: Mapping[str, Sequence[tuple[str, str]]], added: Mapping[str, str] | None = None) -> str:
    """Change the application's files and commit. Each old text must stand there once: the application has moved on otherwise."""
    for name, pairs in changes.items():
        file = project.app / "desk" / name
        text = file.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, f"{name} holds {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        file.write_text(text)
    return project.commit({f"desk/{name}": text for name, text in (added or {}).items()})


def desk_experiment(project: Project, name: str, refs: Mapping[str, str], **more: Any) -> None:
    """refs: of the arms by name. The dataset holds every case of the project, or those that `cases` names."""
    cases = more.pop("cases", ["*"])
    project.write(f"datasets/{name}.yaml", {"name": name, "cases": cases})
    arms = [{"name": arm, "ref": ref, "config": {"model": "stand-in", "temperature": 0}} for arm, ref in refs.items()]
    project.write(
        f"experiments/{name}.yaml", {"name": name, "dataset": name, "app": "matter-desk", "arms": arms, "trials": 1, **more}
    )


# What a second commit changes: a user's name in two columns, both required, and all that knows of it

SPLIT = '''"""A user's name in two columns, and nobody without one."""

from alembic import op

revision, down_revision = "0005", "0004"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE people (
            id text PRIMARY KEY, given_name text NOT NULL, family_name text NOT NULL, role text, email text, extra json NOT NULL);
        INSERT INTO people SELECT id, CASE WHEN position(' ' IN name) > 0 THEN split_part(name, ' ', 1) ELSE '' END,
            substr(name, position(' ' IN name) + 1), role, email, extra FROM users;
        DROP TABLE users;
        ALTER TABLE people RENAME TO users;
        CREATE TRIGGER mark_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON users
            FOR EACH STATEMENT EXECUTE FUNCTION mark_changed();
        INSERT INTO changed VALUES ('users') ON CONFLICT DO NOTHING;
    """)
'''
OF_FIRST_VERSION = '''

def of_first_version(world: Path) -> bool:
    """Whether its users have their names in one piece."""
    users = world / "database" / "users.jsonl"
    return users.exists() and any("name" in row for row in rows(users))
'''


def add_migration(project: Project) -> str:
    """The commit. It writes worlds of version 2, and loads those of version 1 by its old schema and the migration."""
    names = '" ".join(filter(None, (user.get("given_name"), user.get("family_name"))))'
    changes = {
        "evals.app.yaml": [("schema_version: 1\nrestores: [1]\n", "schema_version: 2\nrestores: [1, 2]\n")],
        "matter_desk/records.py": [
            ('"users": ("name", "role", "email"),', '"users": ("given_name", "family_name", "role", "email"),'),
            ("rows: Iterable[Row]) -> None:", "rows: Iterable[Row], tables: dict[str, tuple[str, ...]] = TABLES) -> None:"),
            ("    columns = TABLES[table]\n    marks", "    columns = tables[table]\n    marks"),
        ],
        "matter_desk/restore.py": [
            ("        cluster.migrate()\n", '        cluster.migrate("0004" if of_first_version(world) else "head")\n'),
            ("            count = load(cursor, world)\n", "            count = load(cursor, world)\n        cluster.migrate()\n"),
            ("    for table in sorted(", '    tables = records.TABLES | ({"users": ("name", "role", "email")} if of_first_version(world) else {})\n    for table in sorted('),
            ("records.insert(cursor, table.stem, rows(table))", "records.insert(cursor, table.stem, rows(table), tables)"),
            ("            yield row\n", f"            yield row\n{OF_FIRST_VERSION}"),
        ],
        "matter_desk/agent.py": [
            ('    style = str(case["config"]', f'    name = {names} or "the team"\n    style = str(case["config"]'),
            ("{user.get('name', 'the team')}", "{name}"),
        ],
    }  # fmt: skip
    return edit(project, changes, {"matter_desk/migrations/versions/0005_names.py": SPLIT})


def split_name(user: Mapping[str, Any]) -> dict[str, Any]:
    """A row of version 1 as one of version 2."""
    first, space, rest = user["name"].partition(" ")
    given, family = (first, rest) if space else ("", first)
    return {**{key: value for key, value in user.items() if key != "name"}, "given_name": given, "family_name": family}
