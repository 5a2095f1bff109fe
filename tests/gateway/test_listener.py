"""Listening sockets: every address of a name, unix paths, stale files, clear refusals."""

from __future__ import annotations

import socket

import pytest

from sglang_subgw.errors import ConfigError
from sglang_subgw.gateway import listener


def test_port_zero_gives_one_port_for_all_addresses():
    sockets = listener.bind("localhost", 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert listener.url(sockets[0], "localhost") == f"http://localhost:{sockets[0].getsockname()[1]}"
    finally:
        listener.close(sockets)


def test_a_bound_socket_refuses_until_it_listens():
    (sock,) = listener.bind("127.0.0.1", 0)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(sock.getsockname())
        sock.listen(1)
        socket.create_connection(sock.getsockname()).close()
    finally:
        listener.close([sock])


def test_a_taken_port_is_named():
    (taken,) = listener.bind("127.0.0.1", 0)
    try:
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} can't be listened on: Address already in use"):
            listener.bind("127.0.0.1", port)
    finally:
        listener.close([taken])


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="no-such-host.invalid"):
        listener.bind("no-such-host.invalid", 0)


def test_a_unix_socket_is_removed_at_the_end_and_a_stale_one_replaced(tmp_path):
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    sockets = listener.bind(f"unix:{path}", 0)
    assert listener.url(sockets[0], "") == f"unix:{path}"
    listener.close(sockets)
    assert not path.exists()
    listener.close(sockets)


def test_a_unix_socket_in_use_and_a_file_are_left_alone(tmp_path):
    path = tmp_path / "s"
    sockets = listener.bind(f"unix:{path}", 0)
    sockets[0].listen(1)
    with pytest.raises(ConfigError, match="in use"):
        listener.bind(f"unix:{path}", 0)
    listener.close(sockets)
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        listener.bind(f"unix:{path}", 0)
    assert path.read_text() == "precious"


def test_a_unix_socket_needs_a_path():
    with pytest.raises(ConfigError, match="--host unix: has no path"):
        listener.bind("unix:", 0)


@pytest.mark.parametrize(
    ("host", "name"),
    [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")],
)
def test_the_url_is_one_that_a_client_can_use(host, name):
    sockets = listener.bind(host, 0)
    try:
        assert listener.url(sockets[0], host).startswith(f"http://{name}:")
    finally:
        listener.close(sockets)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_bracketed():
    sockets = listener.bind("::1", 0)
    try:
        assert listener.url(sockets[0], "::1").startswith("http://[::1]:")
    finally:
        listener.close(sockets)
