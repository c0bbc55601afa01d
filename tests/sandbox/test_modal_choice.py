"""What of a Modal sandbox's output is fetched, from a listing alone."""

from __future__ import annotations

from eval_pipeline.sandbox.modal_bundle import MAX_BYTES, choose


def listing(**sizes: int) -> bytes:
    return b"".join(f"f 644 {size} {name.replace('__', '/').replace('_', '.')}\0".encode() for name, size in sizes.items())


def test_a_large_state_costs_no_transcript() -> None:
    chosen = choose(listing(state__big=MAX_BYTES - 50, transcript_jsonl=100, result_json=20))
    assert chosen.wanted == [b"result.json", b"transcript.jsonl"]
    assert list(chosen.skipped) == ["state/big"]


def test_the_state_comes_last() -> None:
    assert choose(listing(state__a=1, transcript_jsonl=1)).wanted == [b"transcript.jsonl", b"state/a"]
