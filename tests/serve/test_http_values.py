"""The values of a JSON body are counted as a parser would, in pieces of any size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed import limits
from lakebed.serve import http_body
from lakebed.serve.http_body import check_values
from lakebed.serve.http_errors import Refused

ODD = 'a,[{"\\é'
VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet=ODD, max_size=12),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(ODD, max_size=3), inner),
    max_leaves=20,
)


def separators(text: str) -> int:
    """Count commas and opening brackets outside of texts, one character after the other."""
    count, in_text, escaped = 0, False, False
    for character in text:
        if escaped:
            escaped = False
        elif in_text and character == "\\":
            escaped = True
        elif character == '"':
            in_text = not in_text
        elif not in_text and character in ",[{":
            count += 1
    return count


@given(value=VALUES, step=st.integers(1, 9))
def test_separators_are_counted_outside_of_texts(value: object, step: int) -> None:
    text = json.dumps(value, ensure_ascii=False)
    wanted = separators(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_body, "_COUNT_BYTES", step)
        patch.setattr(limits, "JSON_VALUES_MAX", wanted)
        check_values(text.encode())
        if wanted:
            patch.setattr(limits, "JSON_VALUES_MAX", wanted - 1)
            with pytest.raises(Refused):
                check_values(text.encode())
