"""Volumes of version 2: files made of blocks of 8 MiB that are stored once, by digest."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from grpclib import GRPCError, Status
from modal_proto import api_pb2

BLOCK = 8 * 2**20


@dataclass
class Volume:
    id: str
    name: str
    folder: Path
    blocks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


class Volumes:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.block_folder = folder / "blocks"
        self.block_folder.mkdir(parents=True)
        self.known: dict[str, Volume] = {}
        self.names: dict[tuple[str, str], str] = {}
        self.url = ""
        self.puts = 0

    def get(self, volume_id: str) -> Volume:
        if volume_id not in self.known:
            raise GRPCError(Status.NOT_FOUND, f"no volume {volume_id}")
        return self.known[volume_id]

    def get_or_create(self, environment: str, name: str, create: bool) -> Volume:
        found = self.names.get((environment, name))
        if found is None:
            if not create:
                raise GRPCError(Status.NOT_FOUND, f"no volume {name}")
            found = self.names[environment, name] = "vo-" + uuid.uuid4().hex[:22]
            self.known[found] = Volume(found, name, self._folder / found)
            self.known[found].folder.mkdir()
            self.known[found].folder.chmod(0o755)
        return self.known[found]

    def put(self, request: api_pb2.VolumePutFiles2Request) -> api_pb2.VolumePutFiles2Response:
        volume = self.get(request.volume_id)
        for file in request.files:
            if request.disallow_overwrite_existing_files and _below(volume, file.path).exists():
                raise GRPCError(Status.ALREADY_EXISTS, f"{file.path} exists")
        missing = [
            api_pb2.VolumePutFiles2Response.MissingBlock(
                file_index=i, block_index=j, put_url=f"{self.url}/blocks/{block.contents_sha256.hex()}"
            )
            for i, file in enumerate(request.files)
            for j, block in enumerate(file.blocks)
            if not (self.block_folder / block.contents_sha256.hex()).exists()
        ]
        for file in request.files if not missing else ():
            self._assemble(volume, file)
        return api_pb2.VolumePutFiles2Response(missing_blocks=missing)

    def _assemble(self, volume: Volume, file: api_pb2.VolumePutFiles2Request.File) -> None:
        target = _below(volume, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        digests = [block.contents_sha256.hex() for block in file.blocks]
        partial = target.with_name(f".{uuid.uuid4().hex}")
        with partial.open("wb") as out:
            for number, digest in enumerate(digests):
                out.seek(number * BLOCK)  # zeros at a block's end were not sent
                with (self.block_folder / digest).open("rb") as block:
                    shutil.copyfileobj(block, out)
            out.truncate(file.size)
        partial.chmod(file.mode & 0o777 or 0o644)
        partial.rename(target)
        volume.blocks[_key(file.path)] = digests

    def store_block(self, digest: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != digest or len(data) > BLOCK:
            raise ValueError("the block is not what its digest says")
        self.puts += 1
        partial = self.block_folder / f".{uuid.uuid4().hex}"
        partial.write_bytes(data)
        partial.rename(self.block_folder / digest)

    def entries(self, request: api_pb2.VolumeListFiles2Request) -> Iterator[api_pb2.FileEntry]:
        volume = self.get(request.volume_id)
        start = _below(volume, request.path)
        if not start.exists():
            raise GRPCError(Status.NOT_FOUND, f"no file {request.path}")
        found = [start] if start.is_file() else sorted(start.rglob("*") if request.recursive else start.glob("*"))
        for path in found:
            if not path.is_file() and not path.is_dir():
                continue  # a test's own pipe among the files: no upload brings one
            status = path.lstat()
            kind = api_pb2.FileEntry.DIRECTORY if path.is_dir() else api_pb2.FileEntry.FILE
            name = str(path.relative_to(volume.folder))
            yield api_pb2.FileEntry(path=name, type=kind, size=status.st_size, mtime=int(status.st_mtime))

    def locate(self, request: api_pb2.VolumeGetFile2Request) -> api_pb2.VolumeGetFile2Response:
        volume = self.get(request.volume_id)
        path = _below(volume, request.path)
        if not path.is_file():
            raise GRPCError(Status.NOT_FOUND, f"no file {request.path}")
        urls = [f"{self.url}/blocks/{digest}" for digest in volume.blocks[_key(request.path)]]
        size = path.stat().st_size
        return api_pb2.VolumeGetFile2Response(get_urls=urls, size=size, start=0, len=size)

    def remove(self, request: api_pb2.VolumeRemoveFile2Request) -> None:
        path = _below(self.get(request.volume_id), request.path)
        if path.is_dir() and request.recursive:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
        else:
            raise GRPCError(Status.NOT_FOUND, f"no file {request.path}")


def _key(path: str) -> str:
    return str(PurePosixPath("/", path))


def _below(volume: Volume, path: str) -> Path:
    parts = PurePosixPath(path.lstrip("/")).parts
    if ".." in parts:
        raise GRPCError(Status.INVALID_ARGUMENT, f"{path} is no path of a volume")
    return volume.folder.joinpath(*parts)
