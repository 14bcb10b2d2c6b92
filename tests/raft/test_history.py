"""Terms and memberships kept as runs say the same as a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakebed.raft import Membership
from lakebed.raft.history import Boundary, History

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "cut", "release"]), st.integers(0, 6)), max_size=40
)


@given(STEPS)
def test_runs_say_the_same_as_a_list(steps: list[tuple[str, int]]) -> None:
    history = History(Boundary())
    terms: dict[int, int] = {0: 0}
    memberships: dict[int, Membership] = {0: Membership()}
    first, last, term = 0, 0, 0
    for step, number in steps:
        if step == "add":
            term += number // 4
            member = Membership((number,)) if number % 3 == 0 else None
            last += 1
            history.add(last, term, member)
            terms[last] = term
            if member is not None:
                memberships[last] = member
        elif step == "cut":
            last = max(first, last - number)
            history.cut(last)
        else:
            first += number
            boundary = Boundary(first, terms[first] if first <= last else term, Membership((99,)))
            terms[first], memberships[first] = boundary.term, boundary.membership
            last = max(first, last)
            history.release(boundary)
        terms = {index: each for index, each in terms.items() if first <= index <= last}
        memberships = {index: each for index, each in memberships.items() if first <= index <= last}
        term = terms[last]
        assert (history.last_index, history.last_term) == (last, term)
        assert history.membership == memberships[max(memberships)]
        for index in range(1, last + 3):
            assert history.term_at(index) == terms.get(index)


def test_entries_that_were_lost_have_no_term() -> None:
    history = History(Boundary())
    history.add(2, 1)
    history.add(5, None)
    assert history.last_term == 1
    history.add(6, 3)
    assert [history.term_at(index) for index in range(8)] == [0, 1, 1, None, None, None, 3, None]
