from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from data.components import components

NODE = st.integers(0, 11)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NODE, NODE), max_size=20))
def test_a_node_gets_the_smallest_that_it_reaches(joined: list[tuple[int, int]]) -> None:
    reached = {node: {node} for node in range(12)}
    for _ in range(12):
        for one, other in joined:
            both = reached[one] | reached[other]
            for node in both:
                reached[node] |= both
    assert components(12, joined) == [min(reached[node]) for node in range(12)]
