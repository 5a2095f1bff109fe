"""Bootstrap rooms: one user each, whichever worker, and free again when that ends however it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_subgw.coordination.bootstrap_rooms import ROOMS_NAME, BootstrapRooms
from sglang_subgw.errors import EngineUnavailable, RequestRejected

LAST = 2**63 - 1


@pytest.fixture
def two(tmp_path: Path) -> tuple[BootstrapRooms, BootstrapRooms]:
    return BootstrapRooms(str(tmp_path)), BootstrapRooms(str(tmp_path))


def test_a_room_has_one_user(two: tuple[BootstrapRooms, BootstrapRooms]) -> None:
    one, other = two
    one.claim([1, LAST])
    for rooms in (one, other):
        with pytest.raises(RequestRejected, match=f"bootstrap_room {LAST} is in use"):
            rooms.claim([5, LAST])
    other.claim([5])
    one.release([LAST, 1])
    other.claim([LAST])
    one.close()
    other.close()


def test_what_was_not_claimed_is_not_given_back(two: tuple[BootstrapRooms, BootstrapRooms]) -> None:
    one, other = two
    one.claim([3])
    other.release([3])
    with pytest.raises(RequestRejected):
        other.claim([3])
    one.close()
    one.release([3])
    other.claim([3])
    other.close()
    other.close()


def test_no_file_is_there_where_no_room_is(tmp_path: Path) -> None:
    rooms = BootstrapRooms(str(tmp_path))
    rooms.claim([])
    rooms.release([])
    rooms.close()
    assert not (tmp_path / ROOMS_NAME).exists()


def test_a_killed_worker_s_rooms_are_free(tmp_path: Path) -> None:
    script = f"""
import sys, time
from sglang_subgw.coordination.bootstrap_rooms import BootstrapRooms
rooms = BootstrapRooms({str(tmp_path)!r})
rooms.claim([9])
print(flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    rooms = BootstrapRooms(str(tmp_path))
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(RequestRejected):
            rooms.claim([9])
        process.kill()
    rooms.claim([9])
    rooms.close()


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    rooms = BootstrapRooms(str(tmp_path / "gone"))
    with pytest.raises(EngineUnavailable, match="gone/rooms"):
        rooms.claim([1])
    rooms.close()
