"""Comparing two states, as functions of what was read of them."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeVar, cast

from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.domain.world_diff import (
    FileChange,
    FileFacts,
    Hunk,
    Kind,
    Permissions,
    ReaderChange,
    ReaderChanges,
    RuleChange,
    RuleChanges,
    TextDiff,
    listed,
    printable,
)

K = TypeVar("K", str, "tuple[str, str]")
V = TypeVar("V")

MAX_LINES, MAX_PAIRS_A_LINE, MAX_LINE_CHARS = 4000, 4, 2000
MAX_RULES, MAX_READERS, MAX_RULE_TESTS, MAX_NAMED = 2000, 10_000, 4_000_000, 50
MAX_RULE_CHARS = 4000

Opcode = tuple[str, int, int, int, int]


def differences(before: Mapping[K, V], after: Mapping[K, V]) -> list[tuple[K, Kind]]:
    """The keys that one side lacks or whose values differ, sorted."""
    found: list[tuple[K, Kind]] = []
    for key in sorted(before.keys() | after.keys()):
        if key not in after:
            found.append((key, "removed"))
        elif key not in before:
            found.append((key, "added"))
        elif before[key] != after[key]:
            found.append((key, "changed"))
    return found


def file_changes(
    keys: Iterable[tuple[str, Kind]], before: Mapping[str, FileFacts], after: Mapping[str, FileFacts]
) -> list[FileChange]:
    """keys: of `differences`. before, after: the whole states, where a file's content may be found again under another name."""
    places = {"added": _by_content(before), "removed": _by_content(after), "changed": dict[str, str]()}
    changes: list[FileChange] = []
    for path, kind in keys:
        old, new = before.get(path), after.get(path)
        facts = new or old
        same_as = places[kind].get(facts.sha256) if facts is not None and facts.size else None
        changes.append(FileChange(path=printable(path), change=kind, before=old, after=new, same_as=same_as))
    return changes


def _by_content(files: Mapping[str, FileFacts]) -> dict[str, str]:
    return {files[path].sha256: printable(path) for path in sorted(files, reverse=True)}


def text_diff(before: str, after: str, max_bytes: int) -> TextDiff:
    """By lines, with a line of context. max_bytes: of the lines, from which on they are only counted."""
    a, b = before.splitlines(), after.splitlines()
    hunks: list[Hunk] = []
    n_more = n_cut = 0
    for _, a1, a2, b1, b2 in _opcodes(a, b):
        lines: list[str] = [f" {_cut(a[a1 - 1])}"] if a1 else []
        for line in [*(f"-{line}" for line in a[a1:a2]), *(f"+{line}" for line in b[b1:b2])]:
            kept = _cut(line)
            max_bytes -= len(kept.encode())
            if max_bytes < 0:
                n_more += 1
                continue
            n_cut += len(line) > MAX_LINE_CHARS
            lines.append(kept)
        if max_bytes >= 0:
            lines += [f" {_cut(a[a2])}"] if a2 < len(a) else []
        if len(lines) > bool(a1):
            hunks.append(Hunk(before_line=a1 + (not a1), after_line=b1 + (not b1), lines=tuple(lines)))
    return TextDiff(hunks=tuple(hunks), n_more=n_more, n_cut=n_cut)


def _cut(line: str) -> str:
    return printable(line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1] + "…")


def _opcodes(a: Sequence[str], b: Sequence[str]) -> Iterator[Opcode]:
    """The blocks that differ. Texts that would take long to compare are one block between their equal ends."""
    head = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    most = min(len(a), len(b)) - head
    tails = zip(reversed(a), reversed(b), strict=False)
    tail = min(most, next((n for n, (x, y) in enumerate(tails) if x != y), most))
    mid_a, mid_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if not mid_a and not mid_b:
        return
    if not _comparable(mid_a, mid_b):
        yield "replace", head, head + len(mid_a), head, head + len(mid_b)
        return
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, mid_a, mid_b, autojunk=False).get_opcodes():
        if tag != "equal":
            yield tag, a1 + head, a2 + head, b1 + head, b2 + head


def _comparable(a: Sequence[str], b: Sequence[str]) -> bool:
    """difflib's work grows with the pairs of equal lines, which a text can be made of."""
    if len(a) + len(b) > MAX_LINES:
        return False
    counts = Counter(b)
    return sum(counts[line] for line in a) <= MAX_PAIRS_A_LINE * (len(a) + len(b))


@dataclass(frozen=True)
class Rules:
    """default: who may read what no rule matches. rules: pattern and readers; the first that matches decides. written: as it is."""

    default: frozenset[str]
    rules: tuple[tuple[str, frozenset[str]], ...]
    written: tuple[str, ...]


def read_rules(value: Any) -> Rules:
    """Of the parsed permissions. Raises ValueError, which says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError(f"permissions must be a mapping with `default` and `rules`, found {type(value).__name__}")
    data = cast(dict[str, Any], value)
    rules = data.get("rules", [])
    if not isinstance(rules, list) or len(cast(list[Any], rules)) > MAX_RULES:
        raise ValueError(f"`rules` must be a list of at most {MAX_RULES} rules")
    read = [_rule(rule, number) for number, rule in enumerate(cast(list[Any], rules), start=1)]
    written = [_written(rule) for rule in cast(list[dict[str, Any]], rules)]
    return Rules(default=_users(data.get("default"), "default"), rules=tuple(read), written=tuple(written))


def _rule(value: Any, number: int) -> tuple[str, frozenset[str]]:
    rule = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    match = rule.get("match")
    if not isinstance(match, str):
        raise ValueError(f"rule {number} must have a `match`, which is a text")
    return match, _users(rule.get("readers"), f"rule {number}: readers")


def _written(rule: dict[str, Any]) -> str:
    try:
        return canonical_json({**rule, "readers": sorted(rule["readers"])})
    except (TypeError, ValueError):
        raise ValueError(f"the rule for {printable(rule['match'])[:80]!r} holds a value that JSON has no form for") from None


def _users(value: Any, where: str) -> frozenset[str]:
    users = cast(list[Any], value) if isinstance(value, list) else [None]
    named = frozenset(user for user in users if isinstance(user, str))
    if len(users) > MAX_READERS or not all(isinstance(user, str) for user in users):
        raise ValueError(f"`{where}` must be a list of at most {MAX_READERS} users, each a text")
    return named


def compare_permissions(before: Rules, after: Rules, paths: Iterable[str]) -> Permissions:
    """By what they mean for `paths`, and by what is written. Raises ValueError when there is too much to try."""
    known = sorted(set(paths))
    if len(known) * (len(before.rules) + len(after.rules)) > MAX_RULE_TESTS:
        raise ValueError(f"{len(before.rules)} and {len(after.rules)} rules for {len(known)} paths are too many to be tried")
    effects: list[ReaderChange] = []
    old_readers, new_readers = _matcher(before), _matcher(after)
    for path in known:
        old, new = old_readers(path), new_readers(path)
        if old != new:
            gained, lost, n_more = _named(old, new)
            effects.append(ReaderChange(path=printable(path), gained=gained, lost=lost, n_more=n_more))
    fewer, more = Counter(before.written), Counter(after.written)
    rules = [RuleChange(change="removed", rule=_rule_text(rule)) for rule in sorted((fewer - more).elements())]
    rules += [RuleChange(change="added", rule=_rule_text(rule)) for rule in sorted((more - fewer).elements())]
    gained, lost, _ = _named(before.default, after.default)
    return Permissions(
        effect=listed(ReaderChanges, effects, repeat("changed", len(effects))),
        rules=listed(RuleChanges, rules, [rule.change for rule in rules]),
        default_gained=gained,
        default_lost=lost,
        reordered=fewer == more and before.written != after.written,
    )


def _matcher(rules: Rules) -> Any:
    compiled = [(re.compile(fnmatch.translate(match)).match, readers) for match, readers in rules.rules]

    def readers_of(path: str) -> frozenset[str]:
        return next((readers for match, readers in compiled if match(path)), rules.default)

    return readers_of


def _named(old: frozenset[str], new: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    gained, lost = sorted(new - old), sorted(old - new)
    n_more = max(0, len(gained) - MAX_NAMED) + max(0, len(lost) - MAX_NAMED)
    return (
        tuple(printable(user)[:200] for user in gained[:MAX_NAMED]),
        tuple(printable(user)[:200] for user in lost[:MAX_NAMED]),
        n_more,
    )


def _rule_text(rule: str) -> str:
    text = printable(rule)
    return text if len(text) <= MAX_RULE_CHARS else text[: MAX_RULE_CHARS - 1] + "…"
