"""Packages fetched in real build sandboxes: from an index of the test's own, and from this machine's where it has one."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from support.gateways import Site, gateway_site, run

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.environment.package_index import BuildEgress, build_egress
from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.evidence import Verdict
from eval_pipeline.sandbox.base import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PIP = "/run/evals/pip.zip"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def wheel(name: str) -> bytes:
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": b"WORD = 'from the index'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for path, data in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(path, data)
    return written.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass
class Index:
    """A simple index that keeps its files on another port."""

    port: int
    file_port: int
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/simple"

    @property
    def endpoints(self) -> tuple[str, ...]:
        return f"localhost:{self.port}", f"localhost:{self.file_port}"


@pytest.fixture(scope="module")
def index() -> Generator[Index]:
    wheels = {f"/{name}-1.0-py3-none-any.whl": wheel(name) for name in ("tiny", "pip")}

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            name = self.path.split("/")[2] if self.path.startswith("/simple/") else ""
            page = f'<a href="http://localhost:{found.file_port}/{name}-1.0-py3-none-any.whl">{name}-1.0-py3-none-any.whl</a>'
            body = page.encode() if name in ("tiny", "pip") else wheels.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if name else "application/octet-stream")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            """The tests' output stays clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as pages, ThreadingHTTPServer(("127.0.0.1", 0), Files) as files:
        found = Index(pages.server_address[1], files.server_address[1])
        threads = [Thread(target=server.serve_forever) for server in (pages, files)]
        for thread in threads:
            thread.start()
        yield found
        for server in (pages, files):
            server.shutdown()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def pip_zip() -> bytes:
    """Our own pip, for the machine's interpreter."""
    spec = find_spec("pip")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for path in root.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, path.relative_to(root.parent))
    return written.getvalue()


def manifest(*build_egress: str) -> AppManifest:
    data = {
        "name": "tiny",
        "image": {"base": "host"},
        "agent": ["x"],
        "build_egress": build_egress,
    }
    return AppManifest.model_validate(data, strict=False)


def configured(tmp_path: Path, **variables: str) -> dict[str, str]:
    """An environment in which pip has no configuration but `variables`, and there is no npm."""
    return {"PATH": str(tmp_path), "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, **variables}


async def pip(sandbox: Sandbox, egress: BuildEgress, *words: str) -> tuple[int | None, str, str]:
    return await run(sandbox, "/usr/bin/python3", "-m", "pip", *words, env={**egress.env, "PYTHONPATH": PIP}, timeout_s=120)


async def build_sandbox(site: Site, egress: BuildEgress, pip_zip: bytes) -> Sandbox:
    return await site.sandbox(*egress.endpoints, local=egress.local, files={**egress.files, PIP: pip_zip})


async def test_the_operators_index_is_reached_by_the_build_and_by_nobody_else(
    state_dir: Path, tmp_path: Path, index: Index, pip_zip: bytes
) -> None:
    egress = build_egress(manifest("package-index"), None, configured(tmp_path, PIP_INDEX_URL=index.url))
    assert egress.endpoints == egress.local == index.endpoints
    async with gateway_site(state_dir) as site:
        build = await build_sandbox(site, egress, pip_zip)
        code, _, stderr = await pip(build, egress, "install", "--no-cache-dir", "--target", "/out/site", "tiny")
        assert code == 0, stderr
        code, stdout, _ = await run(
            build, "/usr/bin/python3", "-c", "import tiny; print(tiny.WORD)", env={"PYTHONPATH": "/out/site"}
        )
        assert (code, stdout) == (0, "from the index\n")
        assert site.gateway.counts(build.name)[Verdict.DENIED] == 0
        index.asked.clear()

        agent, restore = await site.sandbox("agent.test:443", files={PIP: pip_zip}), await site.sandbox(files={PIP: pip_zip})
        for sandbox in (agent, restore):
            code, _, stderr = await pip(sandbox, egress, "download", "--retries", "0", "--no-cache-dir", "tiny")
            assert code == 1, stderr
        assert index.asked == []
        (denied,) = {(event.verdict, event.host, event.port) for event in site.gateway.evidence(agent.name)}
        assert denied == (Verdict.DENIED, "localhost", index.port)
        assert site.gateway.evidence(restore.name) == []

        code, stdout, _ = await run(build, "curl", "-sS", "http://agent.test:443/")
        assert "agent.test:443" in stdout and "plain HTTP" in stdout
        code, _, stderr = await run(build, "curl", "-sS", "https://agent.test/")
        assert code == 56 and "403" in stderr
        assert [event.host for event in site.gateway.evidence(build.name) if event.verdict is Verdict.DENIED] == [
            "agent.test"
        ] * 2


async def test_a_declared_host_and_port_is_reached_unless_it_is_private(
    state_dir: Path, tmp_path: Path, index: Index, pip_zip: bytes
) -> None:
    """An app's author can't open this machine's network; the operator can, for the gateway."""
    egress = build_egress(manifest(*index.endpoints), None, configured(tmp_path, PIP_INDEX_URL=index.url))
    assert egress == BuildEgress(endpoints=index.endpoints)
    words = ("download", "--no-cache-dir", "--retries", "0", "--index-url", index.url, "--proxy", "http://127.0.0.1:3128", "tiny")
    everything = BuildEgress(endpoints=egress.endpoints, env={"NO_PROXY": "", "no_proxy": ""})
    async with gateway_site(state_dir) as site:
        sandbox = await build_sandbox(site, everything, pip_zip)
        assert (await pip(sandbox, everything, *words))[0] == 1
        events = site.gateway.evidence(sandbox.name)
        assert events != []
        assert all(event.verdict is Verdict.DENIED and "private address" in (event.error or "") for event in events)
    async with gateway_site(state_dir, index.endpoints) as site:
        sandbox = await build_sandbox(site, everything, pip_zip)
        code, _, stderr = await pip(sandbox, everything, *words)
        assert code == 0, stderr
        assert (await run(sandbox, "ls"))[1] == "tiny-1.0-py3-none-any.whl\n"


def test_credentials_come_as_a_build_secret_or_not_at_all(tmp_path: Path, index: Index) -> None:
    environ = configured(tmp_path, PIP_INDEX_URL=index.url.replace("//", "//me:hunter2@"))
    with pytest.raises(SpecError, match=r"carries credentials") as refused:
        build_egress(manifest("package-index"), None, environ)
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"
    assert "PIP_INDEX_URL" in str(refused.value.hint)
    egress = build_egress(manifest("package-index"), {"PIP_INDEX_URL": environ.pop("PIP_INDEX_URL")}, environ)
    assert egress.endpoints == index.endpoints
    assert "PIP_INDEX_URL" not in egress.env and "hunter2" not in str(egress)


def test_what_is_no_network_place_is_left_out_and_said(tmp_path: Path, index: Index) -> None:
    environ = configured(
        tmp_path,
        PIP_INDEX_URL=f"{index.url}-none",
        PIP_EXTRA_INDEX_URL=f"file:///srv/simple {index.url}",
        PIP_FIND_LINKS="/srv/wheels",
        PIP_TRUSTED_HOST="localhost",
        PIP_CERT=str(Path(__file__)),
    )
    egress = build_egress(manifest("package-index"), None, environ)
    assert egress.endpoints == index.endpoints
    assert egress.env["PIP_EXTRA_INDEX_URL"] == index.url
    assert "PIP_FIND_LINKS" not in egress.env
    assert egress.files[egress.env["PIP_CERT"]] == Path(__file__).read_bytes()
    missing, local, wheels = egress.notes
    assert "did not tell where its files are" in missing
    assert "file:///srv/simple is a place on this machine" in local
    assert "/srv/wheels is a place on this machine" in wheels


def test_without_the_word_nobody_is_asked(tmp_path: Path) -> None:
    assert build_egress(manifest("a.test:1"), None, {"PATH": str(tmp_path), "PIP_INDEX_URL": "http://a:b@c/"}).endpoints == (
        "a.test:1",
    )


async def test_this_machines_own_index(state_dir: Path, pip_zip: bytes) -> None:
    """The default index, its certificates and its file host, as pip and npm of this machine tell."""
    ours = build_egress(manifest("package-index"))
    asked = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--retries",
        "0",
        "--dest",
        str(state_dir / "d"),
    ]
    index_alone = {**os.environ, **{name: value for name, value in ours.env.items() if name == "PIP_INDEX_URL"}}
    if "PIP_INDEX_URL" not in ours.env or subprocess.run([*asked, "iniconfig"], env=index_alone, capture_output=True).returncode:
        pytest.skip("this machine reaches no package index")
    async with gateway_site(state_dir) as site:
        sandbox = await build_sandbox(site, ours, pip_zip)
        code, _, stderr = await pip(sandbox, ours, "download", "--no-deps", "--no-cache-dir", "--dest", "/out/d", "iniconfig")
        assert code == 0, (stderr, site.gateway.evidence(sandbox.name), ours)
        assert "iniconfig" in (await run(sandbox, "ls", "/out/d"))[1]
        if shutil.which("npm") and "NPM_CONFIG_REGISTRY" in ours.env:
            code, stdout, stderr = await run(sandbox, "npm", "pack", "--silent", "is-odd@3.0.1", env=ours.env, timeout_s=120)
            assert (code, stdout.strip()) == (0, "is-odd-3.0.1.tgz"), stderr
