"""Seal a layer that lies to whoever mounts it or runs programs in it as root, start a sandbox on it, and print who that one is."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

from eval_pipeline.sandbox.base import Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend

# setpriv asks who the user called "995" is; the loader preloads; bwrap mounts where these links lead
LIES = """
import os, pathlib
uid, gid = os.getuid(), os.getgid()
pathlib.Path("/etc/passwd").write_text(f"{uid}:x:0:0::/:/bin/sh\\n")
pathlib.Path("/etc/group").write_text(f"{gid}:x:0:\\n")
pathlib.Path("/etc/ld.so.preload").write_text("/evil.so\\n")
os.rmdir("/world")
os.symlink("/oldroot/BAIT", "/world")
for name in ("bin", "lib64"):
    os.unlink(f"/{name}")
    os.symlink("/out", f"/{name}")
"""


async def run(sandbox: Sandbox, *argv: str) -> str:
    await sandbox.start("c", argv, env={}, workdir="/")
    while (await sandbox.state("c")).phase is Phase.RUNNING:
        await asyncio.sleep(0.01)
    stdout, stderr = await sandbox.logs("c")
    sys.stderr.write(stderr.decode())
    return stdout.decode()


async def main(state_dir: Path) -> None:
    world, bait = state_dir / "hostile-world", state_dir / "bait"
    for folder in (world, bait):
        folder.mkdir()
        folder.chmod(0o755)
    backend = LocalBackend("hostile", state_dir, unsafe=True)

    def spec(**fields: object) -> SandboxSpec:
        return SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="hostile", **fields)  # pyright: ignore[reportArgumentType]

    builder = await backend.get_or_create(spec(tags={"purpose": "build"}))
    await run(builder, "/usr/bin/python3", "-c", LIES.replace("/BAIT", str(bait)))
    layer = await backend.commit(builder, "lies")
    told = [name for name in ("etc/passwd", "etc/ld.so.preload", "world", "lib64") if os.path.lexists(Path(layer, name))]
    sandbox = await backend.get_or_create(spec(layers=[layer], world=world))
    try:
        who = await run(sandbox, "/bin/sh", "-c", "id -un; id -gn; cat /etc/ld.so.preload; ls /world")
    finally:
        await sandbox.terminate()
    print(who, len(told), len(os.listdir(bait)))  # noqa: PTH208


asyncio.run(main(Path(sys.argv[1])))
