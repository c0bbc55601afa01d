"""A container engine from Debian's packages in a directory of our own: this machine gets none, and one that it has stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("docker.io", "docker-compose", "busybox-static", "iptables", "fuse-overlayfs")
_FILTERS = ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore")


def unpack(folder: Path) -> Path:
    """A tree with the packages, and all of what they depend on that this machine has not, below its /usr."""
    debs, tree = folder / "debs", folder / "programs"
    debs.mkdir()
    (tree / "usr").mkdir(parents=True)
    for number, name in enumerate(("bin", "sbin", "lib", "lib64")):
        (tree / name).symlink_to(f"usr/{name}")
        if number < 3:
            (tree / "usr" / name).mkdir()
    names = _missing(*PACKAGES)
    subprocess.run(["apt-get", "download", "-qq", *names], cwd=debs, check=True, capture_output=True, timeout=600)
    for deb in sorted(debs.iterdir()):
        archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-xf", "-", "--keep-directory-symlink", "-C", str(tree)], input=archive, check=True)
    for name in _FILTERS:  # Debian's alternatives say this
        link = tree / "usr/sbin" / name
        if not link.exists():
            link.symlink_to("xtables-nft-multi")
    shutil.rmtree(debs)
    return tree


def _missing(*packages: str) -> list[str]:
    """The packages themselves, and what `apt-get install` would add for them here."""
    env = {**os.environ, "LC_ALL": "C"}
    simulated = subprocess.run(
        ["apt-get", "-s", "install", "--no-install-recommends", *packages], check=True, capture_output=True, text=True, env=env
    )
    added = [line.split()[1] for line in simulated.stdout.splitlines() if line.startswith("Inst ")]
    return sorted({*packages, *added})
