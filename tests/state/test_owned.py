"""What the state counts beside its values: by owner, and markers by the end of their time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lakebed.state.owned import Markers, Producers
from lakebed.state.values import Marker, ProducerState, owner_of

_NAMES = st.sampled_from(["a", "b", "ann/", "ann/job", "bob/job", "bob/x"])
_STEPS = st.lists(
    st.tuples(_NAMES, st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=60
)


@given(_STEPS, st.integers(0, 45))
def test_markers_know_whose_time_is_over(
    steps: list[tuple[str, int, int, bool]], time_us: int
) -> None:
    """As a look at all of them would tell, whatever was put in and taken out, also twice."""
    markers = Markers()
    plain: dict[str, Marker] = {}
    for name, began_us, keep_us, gone in steps:
        for _ in range(2):
            if gone:
                markers.pop(name, None)
                plain.pop(name, None)
            else:
                markers[name] = plain[name] = Marker(1, began_us, keep_us)
    for found in (markers, markers.copy(), Markers(plain.items())):
        assert found == plain
        over = [name for name, each in plain.items() if each.time_us + each.keep_us < time_us]
        assert sorted(found.over(time_us)) == sorted(over)
        owners = Counter(map(owner_of, plain))
        assert {owner: found.count_of(owner) for owner in ("", "ann", "bob")} == {
            owner: owners[owner] for owner in ("", "ann", "bob")
        }


def test_a_marker_that_is_set_again_and_again_takes_no_room() -> None:
    markers = Markers()
    for number in range(20_000):
        markers["a"] = Marker(number, number, 10**9)
        markers["b"] = Marker(number, 10**12 - number, 0)
    assert len(markers._ends) < 2_000
    assert list(markers.over(10**11)) == ["a"]


def test_a_copy_stays_as_it_was() -> None:
    producers = Producers([(1, ProducerState(1, "ann/p", 1, 0, False))])
    copy = producers.copy()
    producers[2] = ProducerState(2, "ann/", 1, 0, True)
    producers[2] = ProducerState(2, "ann/", 2, 0, True)
    producers.pop(1)
    producers.pop(1, None)
    assert (copy.count_of("ann"), producers.count_of("ann"), producers.count_of("")) == (1, 1, 0)
    producers.pop(2)
    assert producers.count_of("ann") == 0
    assert not producers._owned
