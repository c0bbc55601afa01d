"""Many strings at once: found are the places that Python's own search finds one string after the other."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.vault import searching
from eval_pipeline.vault.searching import search_for, searched_plainly

TEXTS = st.lists(
    st.binary(min_size=1, max_size=6) | st.text("aAb\n.*\\", min_size=1, max_size=9).map(str.encode),
    min_size=1,
    max_size=8,
    unique=True,
)


def one_by_one(texts: list[bytes], data: bytes) -> list[tuple[int, int, int]]:
    every = range(len(data) + 1)
    return sorted((n, at, at + len(text)) for n, text in enumerate(texts) for at in every if data.startswith(text, at))


@given(TEXTS, st.data())
def test_every_place_is_found_both_ways(texts: list[bytes], more: st.DataObject) -> None:
    data = b"".join(more.draw(st.lists(st.sampled_from(texts) | st.binary(max_size=4), max_size=20)))
    expected = one_by_one(texts, data)
    assert sorted(search_for(texts)(data)) == expected
    assert sorted(searched_plainly(texts)(data)) == expected


def test_very_many_are_not_prepared_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "COMPILED_MAX", 2)
    texts = [b"one", b"two", b"ne t"]
    assert sorted(search_for(texts)(b"one two")) == one_by_one(texts, b"one two")


def test_several_threads_search_at_once() -> None:
    search, found = search_for([b"needle"]), list[int]()
    data = os.urandom(1 << 22) + b"needle"

    def look() -> None:
        for _ in range(20):
            found.append(len(list(search(data))))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 80
