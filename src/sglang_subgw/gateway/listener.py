"""The gateway's listening sockets: bound before the engine loads, listening only once the shards are ready."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from ..config import Accept, GatewayConfig
from ..errors import ConfigError

_UNIX_PREFIX = "unix:"


def bind_for(config: GatewayConfig) -> list[socket.socket]:
    """Bind what the configuration says: nothing for a `serve` function, which opens what it serves by itself."""
    return [] if config.serve else bind(config.host, config.port, shared=config.accept is Accept.REUSEPORT)


def tcp_address(sockets: list[socket.socket]) -> tuple[str, int] | None:
    """Host and port of the first that has such, as the sockets tell: the port of 0 is the one that was picked."""
    for sock in sockets:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            host, port = sock.getsockname()[:2]
            return host, port
    return None


def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Bind every address of `host` (a name, an address, or unix:PATH); raises ConfigError with the reason.

    `shared` ones only hold the address (SO_REUSEPORT): each shard listens on a `sibling`.
    """
    if host.startswith(_UNIX_PREFIX):
        if shared:
            raise ConfigError(
                f"--accept reuseport is for TCP, and --host is {host}.", hint="--accept handover works with both."
            )
        return [_bind_unix(Path(host.removeprefix(_UNIX_PREFIX)))]
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except (socket.gaierror, UnicodeError) as exc:
        raise ConfigError(f"--host {host!r} can't be resolved: {exc}.") from exc
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            # With port 0 the first address picks the port and the others follow it.
            picked = sockets[0].getsockname()[1] if sockets and not port else port
            sockets.append(_bind_tcp(family, (address[0], picked, *address[2:]), shared=shared))
    except BaseException:
        close(sockets)
        raise
    return sockets


def sibling(sock: socket.socket) -> socket.socket:
    """Another socket on the address of a shared one."""
    return _bind_tcp(sock.family, sock.getsockname(), shared=True, alone=False)


def url(listener: socket.socket, host: str) -> str:
    """How a client reaches the socket, by the name the user gave."""
    if listener.family == socket.AF_UNIX:
        return f"{_UNIX_PREFIX}{listener.getsockname()}"
    port = listener.getsockname()[1]
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def close(sockets: list[socket.socket]) -> None:
    """Close the sockets and remove the files of unix ones."""
    for sock in sockets:
        path = sock.getsockname() if sock.fileno() >= 0 and sock.family == socket.AF_UNIX else ""
        sock.close()
        if path:
            Path(path).unlink(missing_ok=True)


def _bind_tcp(family: int, address: tuple[object, ...], *, shared: bool, alone: bool = True) -> socket.socket:
    if shared and alone and address[1]:
        # SO_REUSEPORT would let two servers share an address without either knowing.
        _bind_tcp(family, address, shared=False).close()
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind(address)
    except OSError as exc:
        sock.close()
        raise ConfigError(
            f"{address[0]} port {address[1]} can't be listened on: {os.strerror(exc.errno or 0)}.",
            hint="Choose another with --host and --port.",
        ) from exc
    sock.setblocking(False)
    return sock


def _bind_unix(path: Path) -> socket.socket:
    if path == Path():
        raise ConfigError("--host unix: has no path.", hint="For instance --host unix:/run/user/1000/gateway.sock.")
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"{path} exists and is not a socket.")
        if _answers(path):
            raise ConfigError(f"{path} is in use by a running server.")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"The socket {path} can't be made: {exc.strerror or exc}.") from exc
    sock.setblocking(False)
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
