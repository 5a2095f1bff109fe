"""The numbers of KV event batches: whatever is dropped, doubled or begun anew, nothing is missing without a word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.kv_events.order import Order, Place


def test_the_first_number_may_be_any() -> None:
    order = Order()
    assert order.place(7) is Place.NEXT
    order.read(8)
    assert [order.place(number) for number in (8, 9, 3)] == [Place.NEXT, Place.LATER, Place.RESTARTED]


def test_what_was_read_among_past_ones_is_known_until_new_ones_come() -> None:
    order = Order(5)
    order.begin(0)
    order.read_past(8)
    assert [order.place(number) for number in (5, 7, 8, 9)] == [Place.KNOWN, Place.KNOWN, Place.NEXT, Place.LATER]
    order.read(9)
    assert order.place(5) is Place.RESTARTED


@given(published=st.integers(0, 30), kept=st.sets(st.integers(0, 29)), past=st.none() | st.integers(0, 30))
def test_each_number_is_read_or_missing_exactly_once(published: int, kept: set[int], past: int | None) -> None:
    order = Order(0)
    told: list[int] = []
    if past is not None:
        # Up to there they were asked for; those that also come by themselves must not count twice.
        order.begin(0)
        told += range(past)
        order.read_past(past)
    arrived = [(number, 1) for number in range(published) if number in kept]
    for number, batch in [*arrived, (max(published, past or 0), 0)]:
        place = order.place(number)
        if place is Place.KNOWN:
            continue
        assert place is not Place.RESTARTED
        if place is Place.LATER:
            assert order.expected is not None
            told += range(order.expected, number)
        order.read(number + batch)
        told += [number] * batch
    assert told == list(range(max(published, past or 0)))
