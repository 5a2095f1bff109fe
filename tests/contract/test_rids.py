"""Rids: fixed width, so that no abort by prefix reaches another request."""

from __future__ import annotations

import pytest

from sglang_subgw.contract.rids import RID_LENGTH, Rids, prefix


def test_rids_are_unique_and_of_one_width() -> None:
    makers = [Rids("0123456789ab", shard, generation) for shard in (0, 1, 16) for generation in (0, 1, 16)]
    rids = [maker.next() for maker in makers for _ in range(20)]
    assert len(set(rids)) == len(rids)
    assert {len(rid) for rid in rids} == {RID_LENGTH}
    assert not any(a != b and a.startswith(b) for a in rids for b in rids)


def test_one_life_of_a_shard_has_a_prefix_of_its_own() -> None:
    rids = Rids("0123456789ab", 2, 3)
    assert rids.next().startswith(rids.prefix)
    assert rids.next_health().startswith(f"HEALTH_CHECK_{rids.prefix}")
    assert len({prefix("0123456789ab", shard, life) for shard in range(20) for life in range(20)}) == 400


@pytest.mark.parametrize(("gateway", "shard"), [("short", 0), ("0123456789ab", 16**3), ("0123456789ab", -1)])
def test_what_does_not_fit_is_refused(gateway: str, shard: int) -> None:
    with pytest.raises(ValueError, match=r"hex digits"):
        prefix(gateway, shard, 0)
