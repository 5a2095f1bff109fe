"""Where the admin listener listens: a unix socket for this user alone, or a port of the machine itself."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Final, Self

from ...config import GatewayConfig
from ...errors import ConfigError

log = logging.getLogger("sglang_subgw.engine")

FORM: Final = "unix:PATH or [HOST:]PORT"
_UNIX: Final = "unix:"


class AdminSocket:
    """A bound socket, on which nobody listens yet, until `close`."""

    def __init__(self, sock: socket.socket, path: Path | None = None) -> None:
        self.sock = sock
        self._path = path
        host, port = sock.getsockname()[:2] if path is None else ("", 0)
        self.is_loopback = path is None and ipaddress.ip_address(host).is_loopback
        """Whether it is a port that this machine alone can reach."""
        self.url = f"{_UNIX}{path}" if path else f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @classmethod
    def bind(cls, text: str) -> Self:
        """What `--admin-listen` says; raises ConfigError with the reason, and warns of a port that others can reach."""
        if text.startswith(_UNIX):
            return cls.at(Path(text.removeprefix(_UNIX)))
        bound = cls(_bind_tcp(text))
        if not bound.is_loopback:
            log.warning("The admin listener is at %s: whoever can reach it may call its routes, unasked.", bound.url)
        return bound

    @classmethod
    def at(cls, path: Path) -> Self:
        """A unix socket, mode 0600, in the place of one on which nobody listens any longer; raises ConfigError."""
        if not path.name:
            raise ConfigError("--admin-listen unix: has no path.", hint="For instance unix:/run/user/1000/admin.sock.")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            sock.bind(str(path))
            # Nobody can connect before it listens.
            os.chmod(path, 0o600)
        except OSError as exc:
            sock.close()
            raise ConfigError(f"The admin socket {path} can't be made: {exc.strerror or exc}.") from exc
        except BaseException:
            sock.close()
            raise
        return cls(sock, path)

    def close(self) -> None:
        """Close the socket and remove its file. Safe to call twice."""
        self.sock.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def bind_for(config: GatewayConfig) -> AdminSocket | None:
    """What the configuration says, if it says where; raises ConfigError with the reason."""
    return AdminSocket.bind(config.admin_listen) if config.admin_listen else None


def _bind_tcp(text: str) -> socket.socket:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--admin-listen {text!r} is no address.", hint=f"The form is {FORM}.")
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as exc:
        raise ConfigError(f"--admin-listen {text!r} can't be resolved: {exc}.") from exc
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as exc:
        sock.close()
        raise ConfigError(
            f"--admin-listen {text!r} can't be listened on: {os.strerror(exc.errno or 0)}.", hint="Choose another."
        ) from exc
    return sock


def _remove_stale(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} exists and is not a socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(f"{path} is in use by a running server.")
