from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.domain.world import SnapshotManifest, WorldSpec
from eval_pipeline.errors import SpecError, StoreError
from eval_pipeline.store.artifacts import LocalArtifacts
from eval_pipeline.store.snapshots import Snapshot, load_snapshot, pack_world, remove_tree, restore, scan_world

SPEC = WorldSpec(id="w", title="W", documents="docs/", database="db", permissions="perms.yml", blobs="data/blobs")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    folder = tmp_path / "world"
    for name, content in {
        "docs/lease.txt": b"Kiel",
        "docs/sub/ü \n'name.txt": b"umlaut",
        "db/contracts.jsonl": b"{}\n",
        "perms.yml": b"users: []\n",
        "data/blobs/x.bin": bytes(range(256)) * 10_000,
        "data/blobs/empty": b"",
        "cases/secret.yaml": b"rubric: x",
        "data/other": b"not a part",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "docs/hollow").mkdir()
    (folder / "docs/lease.txt").chmod(0o755)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(tmp_path / "artifacts")


def test_manifest_names_exactly_the_parts(world: Path) -> None:
    manifest = scan_world(world, SPEC)
    assert [(e.path, e.type, e.executable, e.size) for e in manifest.entries] == [
        ("blobs", "dir", False, 0),
        ("blobs/empty", "file", False, 0),
        ("blobs/x.bin", "file", False, 2_560_000),
        ("database", "dir", False, 0),
        ("database/contracts.jsonl", "file", False, 3),
        ("documents", "dir", False, 0),
        ("documents/hollow", "dir", False, 0),
        ("documents/lease.txt", "file", True, 4),
        ("documents/sub", "dir", False, 0),
        ("documents/sub/ü \n'name.txt", "file", False, 6),
        ("permissions.yaml", "file", False, 10),
    ]
    assert manifest.entries[7].sha256 == hashlib.sha256(b"Kiel").hexdigest()


def test_packed_and_restored(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    snapshot = pack_world(world, SPEC, store)
    assert load_snapshot(snapshot.archive, store) == snapshot
    place = restore(snapshot, store, tmp_path / "restored")
    assert place == tmp_path / "restored" / snapshot.digest
    found = {str(p.relative_to(place)): p.read_bytes() if p.is_file() else None for p in place.rglob("*")}
    assert found == {
        "blobs": None,
        "blobs/empty": b"",
        "blobs/x.bin": (world / "data/blobs/x.bin").read_bytes(),
        "database": None,
        "database/contracts.jsonl": b"{}\n",
        "documents": None,
        "documents/hollow": None,
        "documents/lease.txt": b"Kiel",
        "documents/sub": None,
        "documents/sub/ü \n'name.txt": b"umlaut",
        "permissions.yaml": b"users: []\n",
    }
    modes = {stat.S_IMODE(p.lstat().st_mode) for p in place.rglob("*") if p.is_file() and p.name != "lease.txt"}
    assert modes == {0o444}
    assert {stat.S_IMODE(p.stat().st_mode) for p in [place, *place.rglob("*")] if p.is_dir()} == {0o555}
    assert stat.S_IMODE((place / "documents/lease.txt").stat().st_mode) == 0o555
    # A restored world, taken as a world, is the same snapshot.
    same = WorldSpec(id="w", title="W", documents="documents", database="database", permissions="permissions.yaml", blobs="blobs")
    assert scan_world(place, same).digest == snapshot.digest
    remove_tree(place)


def test_the_archive_is_an_ordinary_tar(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    snapshot = pack_world(world, SPEC, store)
    archive = tmp_path / "a.tar"
    store.fetch(snapshot.archive.digest, archive)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", out], check=True)
    assert (out / "documents/sub/ü \n'name.txt").read_bytes() == b"umlaut"
    assert SnapshotManifest.model_validate_json((out / "manifest.json").read_bytes()) == snapshot.manifest


def test_stored_once(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    first = pack_world(world, SPEC, store)
    os.utime(world / "docs/lease.txt", (1, 1))
    assert pack_world(world, SPEC, store) == first
    assert len([p for p in (tmp_path / "artifacts").rglob("*") if p.is_file()]) == 1


def test_restored_once(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    snapshot = pack_world(world, SPEC, store)
    place = restore(snapshot, store, tmp_path / "r")
    before = place.stat()
    Path(store.url(snapshot.archive.digest).removeprefix("file://")).unlink()  # not needed any more
    assert restore(snapshot, store, tmp_path / "r") == place
    assert place.stat().st_ino == before.st_ino
    remove_tree(place)


def _restore_in_process(
    snapshot: Snapshot,
    artifacts: Path,
    root: Path,
    barrier: Barrier,
    results: Queue[int],
) -> None:
    barrier.wait()
    results.put(restore(snapshot, LocalArtifacts(artifacts), root).stat().st_ino)


@pytest.mark.slow
def test_many_processes_restore_at_once(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    snapshot = pack_world(world, SPEC, store)
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(4), spawn.Queue()
    arguments = (snapshot, tmp_path / "artifacts", tmp_path / "r", barrier, results)
    processes = [spawn.Process(target=_restore_in_process, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    inodes = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(inodes) == 1
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted([f".{snapshot.digest}.lock", snapshot.digest])
    remove_tree(tmp_path / "r" / snapshot.digest)


def test_a_killed_restore_is_begun_anew(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    snapshot = pack_world(world, SPEC, store)
    left = tmp_path / "r" / f".{snapshot.digest}.unfinished" / "documents"
    left.mkdir(parents=True)
    (left / "stray").write_text("half")
    (left / "stray").chmod(0o444)
    left.chmod(0o555)
    place = restore(snapshot, store, tmp_path / "r")
    assert not (place / "documents/stray").exists()
    assert not left.parent.exists()
    remove_tree(place)


def _refused(world: Path, spec: WorldSpec = SPEC) -> SpecError:
    with pytest.raises(SpecError) as caught:
        scan_world(world, spec)
    assert caught.value.hint
    assert caught.value.where
    return caught.value


@pytest.mark.parametrize(
    ("target", "side"), [("lease.txt", "inside"), ("/etc/passwd", "outside"), ("../../../x", "outside"), ("gone", "inside")]
)
def test_links_are_refused(world: Path, target: str, side: str) -> None:
    (world / "docs/link").symlink_to(target)
    error = _refused(world)
    assert error.where == str(world / "docs/link")
    assert target in str(error)
    assert side in str(error)


def test_a_linked_directory_is_refused(world: Path) -> None:
    (world / "data").rename(world / "real")
    (world / "data").symlink_to("real")
    assert _refused(world).where == str(world / "data")


def test_special_files_are_refused(world: Path, state_dir: Path) -> None:
    os.mkfifo(world / "docs/pipe")
    assert "FIFO" in str(_refused(world))
    (world / "docs/pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(state_dir / "s"))
        (state_dir / "s").rename(world / "docs/s")
    assert "socket" in str(_refused(world))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a device")
def test_devices_are_refused(world: Path) -> None:
    try:
        os.mknod(world / "docs/null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this root can't make devices")
    assert "device" in str(_refused(world))


@pytest.mark.parametrize(("one", "other"), [("A.txt", "a.TXT"), ("u\u0308.txt", "ü.txt"), ("straße", "STRASSE")])
def test_colliding_names_are_refused(world: Path, one: str, other: str) -> None:
    (world / "docs" / one).write_text("1")
    (world / "docs" / other).write_text("2")
    error = _refused(world)
    assert repr(f"documents/{one}") in str(error)
    assert repr(f"documents/{other}") in str(error)


def test_names_that_are_not_utf8_are_refused(world: Path) -> None:
    Path(os.fsdecode(os.fsencode(world) + b"/docs/caf\xe9.txt")).write_text("x")
    assert r"caf\xe9.txt" in str(_refused(world))


def test_missing_and_empty(world: Path, tmp_path: Path) -> None:
    assert "nowhere" in str(_refused(world, SPEC.model_copy(update={"blobs": "nowhere"})))
    assert scan_world(world, WorldSpec(id="w", title="W")).n_files == 0  # a matter without documents
    (tmp_path / "hollow/docs").mkdir(parents=True)
    assert "no file" in str(_refused(tmp_path / "hollow", WorldSpec(id="w", title="W", documents="docs")))


@pytest.mark.parametrize(
    "path", ["", ".", "/etc", "../world/docs", "docs/..", "cases", "cases/", "./cases", "Cases", "world.yaml"]
)
def test_a_part_is_below_the_world_and_apart_from_its_cases(world: Path, path: str) -> None:
    _refused(world, WorldSpec(id="w", title="W", documents=path))


def test_kinds_of_parts(world: Path) -> None:
    assert "must be a directory" in str(_refused(world, WorldSpec(id="w", title="W", documents="perms.yml")))
    assert "must be a file" in str(_refused(world, WorldSpec(id="w", title="W", permissions="docs")))


def test_sparse_and_hard_linked_files_are_packed_by_content(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    with (world / "docs/sparse").open("wb") as file:
        file.truncate(3 << 20)
    os.link(world / "docs/lease.txt", world / "docs/twin.txt")
    snapshot = pack_world(world, SPEC, store)
    place = restore(snapshot, store, tmp_path / "r")
    assert (place / "documents/sparse").read_bytes() == bytes(3 << 20)
    assert (place / "documents/twin.txt").read_bytes() == b"Kiel"
    assert (place / "documents/twin.txt").stat().st_nlink == 1
    remove_tree(place)


def test_long_names(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    deep = world / "docs" / "/".join(["ä" * 100] * 5)
    deep.mkdir(parents=True)
    (deep / ("n" * 250)).write_text("deep")
    place = restore(pack_world(world, SPEC, store), store, tmp_path / "r")
    assert (place / "documents" / deep.relative_to(world / "docs") / ("n" * 250)).read_text() == "deep"
    remove_tree(place)


UNREADABLE = """
import os, sys
from pathlib import Path
from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.store.snapshots import scan_world
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    scan_world(Path(sys.argv[1]), WorldSpec(id="w", title="W", documents="docs"))
except SpecError as error:
    print(error.where, error, error.hint)
"""


@pytest.mark.parametrize("name", ["docs/closed.txt", "docs/closed"])
def test_unreadable_is_refused(state_dir: Path, name: str) -> None:
    (state_dir / "docs").mkdir()
    path = state_dir / name
    path.mkdir() if name == "docs/closed" else path.write_text("x")
    path.chmod(0)
    child = subprocess.run([sys.executable, "-c", UNREADABLE, str(state_dir)], capture_output=True, text=True, check=True)
    assert child.stdout.startswith(f"{path} {path}: can't be read")
    assert "chmod" in child.stdout


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda path: path.write_bytes(b"other"),
    "same size": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "touch": lambda path: os.utime(path, (1, 1)),
    "add": lambda path: path.with_name("new").write_bytes(b"new"),
    "remove": lambda path: path.unlink(),
    "replace": lambda path: shutil.copy2(path, path.with_name("copy")) and path.with_name("copy").replace(path),
    "mode": lambda path: path.chmod(0o700),
    "link": lambda path: path.rename(path.parents[2] / "moved") and path.symlink_to("../../moved"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before it is read again", "after it was packed"])
def test_a_world_that_changes_while_packed(world: Path, tmp_path: Path, change: str, moment: str) -> None:
    """The interpreter reports each opening of a file: the change comes when the archive, or the last file the second time, is."""
    trigger, count = ("world.tar", 1) if moment.startswith("before") else ("perms.yml", 2)
    seen: list[object] = []

    def strike(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(trigger) and len(seen) < count:
            seen.append(arguments[0])
            if len(seen) == count:
                CHANGES[change](world / "data/blobs/x.bin")

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sys.addaudithook(strike)
    with pytest.raises(SpecError, match=r"changed while|symbolic link"):
        pack_world(world, SPEC, LocalArtifacts(tmp_path / "artifacts"), scratch)
    assert len(seen) == count
    assert not (tmp_path / "artifacts").exists()
    assert not list(scratch.iterdir())


def _archive(manifest: SnapshotManifest, members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        text = manifest.model_dump_json().encode()
        head = tarfile.TarInfo("manifest.json")
        head.size = len(text)
        tar.addfile(head, io.BytesIO(text))
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def _file(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def _manifest_of(*names: str) -> SnapshotManifest:
    digest = hashlib.sha256(b"x").hexdigest()
    entries = [{"path": name, "type": "file", "size": 1, "sha256": digest} for name in names]
    return SnapshotManifest.model_validate({"entries": tuple(entries)})


def _link_member(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


@pytest.mark.parametrize(
    ("manifest", "members"),
    [
        (_manifest_of("../escaped"), [_file("../escaped")]),
        (_manifest_of("/tmp/evals-escaped"), [_file("/tmp/evals-escaped")]),
        (_manifest_of("a"), [_file("../escaped")]),
        (_manifest_of("a"), [_link_member("a", "/etc/passwd", tarfile.SYMTYPE)]),
        (_manifest_of("a"), [_link_member("a", "/etc/passwd", tarfile.LNKTYPE)]),
        (_manifest_of("a"), [_link_member("a", "", tarfile.FIFOTYPE)]),
        (_manifest_of("a"), [_file("a"), _file("b")]),
        (_manifest_of("a", "b"), [_file("a")]),
        (_manifest_of("a"), [_file("a", b"y")]),
        (_manifest_of("a"), [_file("a", b"xx")]),
        (_manifest_of("a", "a"), [_file("a"), _file("a")]),
    ],
)
def test_a_hostile_archive_leaves_nothing(
    store: LocalArtifacts, tmp_path: Path, manifest: SnapshotManifest, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    archive = store.put_bytes(_archive(manifest, members))
    with pytest.raises(StoreError):
        restore(Snapshot(manifest.digest, manifest, archive), store, tmp_path / "r")
    assert [p.name for p in (tmp_path / "r").iterdir()] == [f".{manifest.digest}.lock"]
    assert not list(tmp_path.rglob("escaped"))
    assert not Path("/tmp/evals-escaped").exists()


def test_a_wrong_damaged_or_missing_archive(world: Path, store: LocalArtifacts, tmp_path: Path) -> None:
    snapshot = pack_world(world, SPEC, store)
    (world / "docs/lease.txt").write_text("Lübeck")
    other = pack_world(world, SPEC, store)
    with pytest.raises(StoreError, match="holds the snapshot"):
        restore(Snapshot(snapshot.digest, snapshot.manifest, other.archive), store, tmp_path / "r")
    with pytest.raises(StoreError, match="not a snapshot"):
        load_snapshot(store.put_bytes(b"no tar" * 1000), store)
    path = Path(store.url(snapshot.archive.digest).removeprefix("file://"))
    path.chmod(0o644)
    for damage in (_flip, _truncate):
        whole = path.read_bytes()
        damage(path)
        with pytest.raises(StoreError):
            restore(snapshot, store, tmp_path / "r")
        path.write_bytes(whole)
    path.unlink()
    with pytest.raises(StoreError, match="is not in"):
        restore(snapshot, store, tmp_path / "r")
    assert not [p for p in (tmp_path / "r").iterdir() if p.is_dir()]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the padding after the last member: only the archive's own digest tells
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20_000])


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and len(name.encode()) <= 60)
FILES = st.dictionaries(NAMES, st.tuples(st.binary(max_size=50), st.booleans()), min_size=1, max_size=6).filter(
    lambda files: len({name.casefold() for name in files}) == len(files)
)
ONLY_DOCS = WorldSpec(id="w", title="W", documents="docs")


def _build(root: Path, files: dict[str, tuple[bytes, bool]], order: list[str], mtime: int) -> str | None:
    """The digest; None when the names collide."""
    docs = root / "docs"
    docs.mkdir(parents=True)
    for name in order:
        content, executable = files[name]
        (docs / name).write_bytes(content)
        (docs / name).chmod(0o744 if executable else 0o640)
        os.utime(docs / name, (mtime, mtime))
        if os.getuid() == 0:
            os.chown(docs / name, mtime % 1000, mtime % 1000)
    try:
        return scan_world(root, ONLY_DOCS).digest
    except SpecError:
        return None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(files=FILES, data=st.data())
def test_the_digest_is_of_content_name_and_x_bit_only(files: dict[str, tuple[bytes, bool]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base = _build(root / "base", files, list(files), 1_000_000)
        if base is None:
            return
        shuffled = data.draw(st.permutations(list(files)))
        assert _build(root / "same", files, shuffled, data.draw(st.integers(1, 2**31))) == base
        name = data.draw(st.sampled_from(list(files)))
        content, executable = files[name]
        variants = {
            "content": files | {name: (content + b"!", executable)},
            "x-bit": files | {name: (content, not executable)},
            "name": {other: value for other, value in files.items() if other != name} | {name + "~": files[name]},
            "more": files | {name + "~~": files[name]},
        }
        for change, changed in variants.items():
            assert _build(root / change, changed, list(changed), 1_000_000) != base
