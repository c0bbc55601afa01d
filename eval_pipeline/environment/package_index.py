"""`package-index` in an app's `build_egress`: the hosts that pip and npm of this machine are set up to use.

Nothing here knows a registry: pip and npm are asked for their configuration, for their default, and for where the index keeps its
files. These hosts may have private addresses, since the operator named them; an index is trusted to name its own file host.

A URL with credentials is refused unless it comes as a build secret: export it under pip's or npm's own variable
(PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, NPM_CONFIG_REGISTRY) and list that name in `secrets: {build: [...]}`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from eval_pipeline.domain.app import PACKAGE_INDEX, AppManifest
from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox.base import RUN_DIR

_ASK_TIMEOUT_S = 120.0
_PORTS = {"http": 80, "https": 443}
_PIP_URLS = ("index-url", "extra-index-url", "find-links")
_PIP_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_NPM_CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
_DEFAULT = re.compile(r"\(default (\S+?)\)")


@dataclass(frozen=True, kw_only=True)
class BuildEgress:
    """What a build sandbox may reach, and what its commands need to do so.

    local: those of `endpoints` that may have a private address. env: for the commands. files: for the sandbox, by path inside.
    notes: what of the configuration does not hold inside, in words.
    """

    endpoints: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    notes: tuple[str, ...] = ()


def build_egress(
    manifest: AppManifest, secrets: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> BuildEgress:
    """Asks pip and npm, which takes seconds, when `build_egress` has `package-index`. Raises SpecError for what can't be used.

    secrets: those that the build's commands get by themselves. environ: in which pip and npm are asked; None: ours.
    """
    named = tuple(entry for entry in manifest.build_egress if entry != PACKAGE_INDEX)
    if PACKAGE_INDEX not in manifest.build_egress:
        return BuildEgress(endpoints=named)
    found = _Found(dict(os.environ if environ is None else environ), dict(secrets or {}))
    _ask_pip(found)
    if (npm := shutil.which("npm", path=found.environ.get("PATH"))) is not None:
        _ask_npm(found, npm)
    if any(host == "localhost" or host.startswith("127.") for host in (end.rpartition(":")[0] for end in found.endpoints)):
        found.env |= {"NO_PROXY": "", "no_proxy": ""}  # this machine's loopback, which is behind the proxy
    local = tuple(dict.fromkeys(found.endpoints))
    endpoints = tuple(dict.fromkeys((*named, *local)))
    return BuildEgress(endpoints=endpoints, local=local, env=found.env, files=found.files, notes=tuple(found.notes))


class _Found:
    """What is gathered. environ: of the tools that are asked, which know the build's secrets too."""

    def __init__(self, environ: dict[str, str], secrets: dict[str, str]) -> None:
        self.environ = environ | secrets
        self._secrets = frozenset(secrets)
        self.endpoints: list[str] = []
        self.env: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.notes: list[str] = []

    def urls(self, what: str, variable: str, urls: Iterable[str]) -> list[str]:
        """Those that lead over the network; their endpoints are kept, and `variable` is set to them unless it is a secret."""
        kept = [url for url in urls if self._leads_out(what, variable, url)]
        self.endpoints += map(_endpoint, kept)
        if kept and variable not in self._secrets:
            self.env[variable] = " ".join(kept)
        return kept

    def _leads_out(self, what: str, variable: str, url: str) -> bool:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            self.notes.append(f"{what} {_shown(url)} is a place on this machine: a build sandbox can't reach it")
            return False
        if "@" in parts.netloc and variable not in self._secrets:
            raise SpecError(
                f"{what} {_shown(url)} carries credentials, which would stand in the build's environment for anybody to read",
                hint=f"export the address as {variable} and add {variable} to `secrets: {{build: [...]}}` in evals.app.yaml",
            )
        return True

    def certificate(self, configured: str | None, variables: Iterable[str], *targets: str) -> None:
        path = configured or next((self.environ[name] for name in variables if self.environ.get(name)), None)
        if path is None:
            return
        inside = f"{RUN_DIR}/certificates/{targets[0].lower()}.pem"
        try:
            self.files[inside] = Path(path).read_bytes()
        except OSError as error:
            raise SpecError(f"the certificates for the package index can't be read: {path}: {error.strerror}") from None
        self.env |= dict.fromkeys(targets, inside)

    def file_host(self, what: str, index: str, ask: Callable[[], str | None]) -> None:
        """The host that the index keeps its files on."""
        url = ask()
        if url is None:
            self.notes.append(f"{what} {_shown(index)} did not tell where its files are: name another host in build_egress")
        elif urlsplit(url).scheme in _PORTS:
            self.endpoints.append(_endpoint(url))


def _ask_pip(found: _Found) -> None:
    config = _pip_config(found.environ)
    if "index-url" not in config:
        config["index-url"] = _pip_default(found.environ)
    found.certificate(config.get("cert"), _PIP_CERTIFICATES, "PIP_CERT")
    if hosts := config.get("trusted-host"):
        found.env["PIP_TRUSTED_HOST"] = " ".join(hosts.split())
    if config.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
        found.env["PIP_NO_INDEX"] = "1"
        config = {name: value for name, value in config.items() if not name.endswith("index-url")}
    for name in _PIP_URLS:
        variable = "PIP_" + name.upper().replace("-", "_")
        reached = found.urls(f"pip's {name}", variable, config.get(name, "").split())
        for url in reached if name != "find-links" else []:
            found.file_host("pip's index", url, lambda url=url: _pip_file(url, config, found.environ))
    if "proxy" in config:
        found.notes.append("pip's proxy is not used: the egress proxy dials the index itself")


def _pip_config(environ: Mapping[str, str]) -> dict[str, str]:
    """As `pip install` sees it: the files' [global], then [install], then the environment."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in _said([sys.executable, "-m", "pip", "config", "list"], environ).splitlines():
        key, equals, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if equals and section in sections:
            sections[section][name] = str(ast.literal_eval(value))
    return {name: value for section in sections.values() for name, value in section.items() if value}


def _pip_default(environ: Mapping[str, str]) -> str:
    text = _said([sys.executable, "-m", "pip", "install", "--help"], {**environ, "COLUMNS": "1000"})
    found = next((match[1] for line in text.splitlines() if "--index-url" in line and (match := _DEFAULT.search(line))), None)
    if found is None:
        raise SpecError(
            "pip does not say which index it asks", hint="set PIP_INDEX_URL, or `pip config set global.index-url URL`"
        )
    return found


def _pip_file(index: str, config: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Where `index` keeps the file of a package that most indexes have: pip itself."""
    alone = {name: value for name, value in environ.items() if not name.startswith("PIP_")}
    alone |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    alone |= {
        f"PIP_{name.upper().replace('-', '_')}": config[name] for name in ("cert", "trusted-host", "proxy") if name in config
    }
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--ignore-installed",
        "--no-deps",
        "--no-cache-dir",
    ]
    text = _answer((*command, "--only-binary", ":all:", "--report", "-", "pip"), tuple(sorted(alone.items())))
    return None if text is None else json.loads(text)["install"][0]["download_info"]["url"]


def _ask_npm(found: _Found, npm: str) -> None:
    config = json.loads(_said([npm, "config", "list", "--long", "--json"], found.environ))
    found.certificate(config.get("cafile"), _NPM_CERTIFICATES, "NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS")
    if config.get("strict-ssl") is False:
        found.env["NPM_CONFIG_STRICT_SSL"] = "false"
    for registry in found.urls("npm's registry", "NPM_CONFIG_REGISTRY", [config["registry"]]):
        found.file_host("npm's registry", registry, lambda: _npm_file(npm, found.environ))
    scoped = {name: url for name, url in config.items() if name.startswith("@") and name.endswith(":registry")}
    lines = [f"{name}={url}\n" for name, url in scoped.items() if found.urls(f"npm's {name}", "NPM_CONFIG_USERCONFIG", [url])]
    if lines:
        found.env["NPM_CONFIG_USERCONFIG"] = f"{RUN_DIR}/npmrc"
        found.files[f"{RUN_DIR}/npmrc"] = "".join(lines).encode()


def _npm_file(npm: str, environ: Mapping[str, str]) -> str | None:
    text = _answer((npm, "view", "npm", "dist.tarball", "--json"), tuple(sorted(environ.items())))
    return json.loads(text) if text else None


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or _PORTS[parts.scheme]}"


def _shown(url: str) -> str:
    """Without its credentials."""
    before, at, after = url.rpartition("@")
    return f"{before.partition('//')[0]}//***@{after}" if at else url


def _said(command: list[str], environ: Mapping[str, str]) -> str:
    done = _run(tuple(command), environ)
    if done.returncode:
        raise SpecError(
            f"`{' '.join([Path(command[0]).name, *command[1:]])}` failed: {done.stderr.strip()[-500:]}",
            hint="`package-index` in build_egress asks pip and npm for their configuration: make this command work",
        )
    return done.stdout


@cache
def _answer(command: tuple[str, ...], environ: tuple[tuple[str, str], ...]) -> str | None:
    """Asked once in a process; None when the index doesn't have it."""
    done = _run(command, dict(environ))
    return done.stdout if done.returncode == 0 else None


def _run(command: tuple[str, ...], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=dict(environ), cwd="/", capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {_ASK_TIMEOUT_S:.0f} s")
