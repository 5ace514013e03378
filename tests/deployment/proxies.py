"""nginx and Caddy with the configuration files of the package, on free ports of the loopback interface."""

from __future__ import annotations

import os
import ssl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trustme

from tests.external_tools import CADDY, NGINX, NGINX_STREAM, require
from tests.program_logs import register_log
from tests.servers import ServerAddress, free_port, start_program, wait_until_listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FILES = Path(__file__).parents[2] / "src" / "meshfleet" / "deploy"
_TIMEOUT_SECONDS = 30.0


class Proxy(NamedTuple):
    """Running proxy with a certificate for 127.0.0.1."""

    url: str
    authorities: Path
    """File with the certificate of its authority."""

    @property
    def tls_context(self) -> ssl.SSLContext:
        """TLS context for clients."""
        return ssl.create_default_context(cafile=self.authorities)


class _Certificate(NamedTuple):
    chain: Path
    key: Path
    authorities: Path


@contextmanager
def run_nginx(folder: Path, service: str, changes: Mapping[str, str] | None = None) -> Iterator[Proxy]:
    """Run nginx in front of a service at HOST:PORT. `changes` are texts to replace in its file."""
    port = free_port()
    replaced = {
        "listen 80;": f"listen 127.0.0.1:{free_port()};",
        "listen 443 ": f"listen 127.0.0.1:{port} ",
        "127.0.0.1:8080": service,
        **(changes or {}),
    }
    directories = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = [f"{name}_temp_path {folder}/{name};" for name in directories]
    include = f"include {folder}/meshfleet.conf;"
    lines = ["http {", "access_log off;", *temporary, include, "}"]
    with _run_nginx(folder, port, "meshfleet.conf", replaced, lines) as authorities:
        yield Proxy(f"https://127.0.0.1:{port}", authorities)


@contextmanager
def run_nginx_for_mqtt(folder: Path, broker: str) -> Iterator[Proxy]:
    """Run nginx in front of a broker at HOST:PORT, as its TLS endpoint."""
    port = free_port()
    replaced = {"listen 8883 ": f"listen 127.0.0.1:{port} ", "127.0.0.1:1883": broker}
    lines = [f"load_module {require(NGINX_STREAM)};", f"include {folder}/meshfleet-mqtt.conf;"]
    with _run_nginx(folder, port, "meshfleet-mqtt.conf", replaced, lines) as authorities:
        yield Proxy(f"mqtts://127.0.0.1:{port}", authorities)


@contextmanager
def _run_nginx(
    folder: Path, port: int, name: str, replaced: Mapping[str, str], lines: Sequence[str]
) -> Iterator[Path]:
    """Run nginx with a file of the package and the lines around it. Yield the file of its authority."""
    certificate = _create_certificate(folder)
    live = "/etc/letsencrypt/live/fleet.example.org"
    certificates = {
        f"{live}/fullchain.pem": str(certificate.chain),
        f"{live}/privkey.pem": str(certificate.key),
    }
    text = _replace((FILES / "nginx" / name).read_text("utf-8"), {**certificates, **replaced})
    (folder / name).write_text(text, "utf-8")
    # As root, its workers would have another user, who may not write to the directory.
    user = ["user root;"] if os.geteuid() == 0 else []
    config = folder / "nginx.conf"
    config.write_text(
        "\n".join([*lines, *user, "daemon off;", f"pid {folder}/nginx.pid;", "events {}"]), "utf-8"
    )
    command = [str(require(NGINX)), "-p", str(folder), "-e", "stderr", "-c", str(config)]
    with _run(command, folder / "nginx.log", port):
        yield certificate.authorities


@contextmanager
def run_caddy(folder: Path, service: str) -> Iterator[Proxy]:
    """Run Caddy in front of a service at HOST:PORT, with a certificate from a file."""
    certificate = _create_certificate(folder)
    port = free_port()
    tls = f"tls {certificate.chain} {certificate.key}"
    text = (FILES / "caddy" / "Caddyfile").read_text("utf-8")
    site = _replace(
        text,
        {
            "\nfleet.example.org {\n": f"\nhttps://127.0.0.1:{port} {{\n\tbind 127.0.0.1\n\t{tls}\n",
            "127.0.0.1:8080": service,
        },
    )
    config = folder / "Caddyfile"
    options = ("admin off", "auto_https disable_redirects", f"storage file_system {folder / 'caddy'}")
    config.write_text("\n\t".join(["{", *options]) + f"\n}}\n{site}", "utf-8")
    home = f"XDG_CONFIG_HOME={folder}"  # it stores its last configuration there
    command = ["env", home, str(require(CADDY)), "run", "--adapter", "caddyfile", "--config", str(config)]
    with _run(command, folder / "caddy.log", port):
        yield Proxy(f"https://127.0.0.1:{port}", certificate.authorities)


def _create_certificate(folder: Path) -> _Certificate:
    files = _Certificate(folder / "chain.pem", folder / "key.pem", folder / "ca.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for each in certificate.cert_chain_pems:
        each.write_to_path(files.chain, append=True)
    certificate.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.authorities)
    return files


def _replace(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextmanager
def _run(command: Sequence[str], log: Path, port: int) -> Iterator[None]:
    process = start_program(command, register_log(log.stem, log))
    try:
        wait_until_listening(process, ServerAddress("127.0.0.1", port), log)
        yield
    finally:
        process.terminate()
        process.wait(_TIMEOUT_SECONDS)
