"""How a secret's value may look in a text: a pattern for each encoding, and what every match of it is bound to hold."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import quoteattr

BLOCK_CHARS = 126
_RUN = re.compile(rb"[0-9A-Za-z]+")
_RUN_MIN, _RUN_MAX = 2, 16
_PIECE = 8
# Between two characters of base64, or two bytes in hex, where a line ends or a separator stands
_WRAP = rb"(?:(?:\\{1,4}r|\r)?(?:\\{1,4}n|\n)[ \t>]{0,8})?"
_WRAP_MAX = 19
_SEPARATED = rb"(?:[ :,-]|0x|\\{1,4}x|(?:\\{1,4}r|\r)?(?:\\{1,4}n|\n)){0,3}"
_SEPARATED_MAX = 30
_ESCAPED = {char: rb"\\{1,4}" + repr(char)[2:3].encode() for char in "\n\r\t"}
_ESCAPED |= {"\b": rb"\\{1,4}b", "\f": rb"\\{1,4}f", "\\": rb"\\{8}|\\{4}|\\{2}|\\", " ": rb"\+"}
_NAMED = {"&": b"&amp;", "<": b"&lt;", ">": b"&gt;", '"': b"&quot;", "'": b"&apos;"}
_SAFE = ("", "/", "!'()*", "~@#$&()*!+=:;,/?'")


@dataclass(frozen=True)
class Form:
    """pattern: of at most `longest` bytes. anchors: texts, each with how far behind a match's beginning it may stand.

    A match counts only if it holds one of these whole; in every plain use of the encoding it does.
    """

    pattern: bytes
    longest: int
    anchors: tuple[tuple[bytes, int], ...]


@dataclass(frozen=True)
class _Unit:
    pattern: bytes
    longest: int


def forms_of(value: str) -> list[Form]:
    """A long value in blocks, each for itself: so a part of it is found, too."""
    n_blocks = -(-len(value) // BLOCK_CHARS)
    size = -(-len(value) // n_blocks)
    size += -size % 3 if n_blocks > 1 else 0  # base64 cuts by three bytes
    return [form for start in range(0, len(value), size) for form in _block(value[start : start + size])]


def _block(text: str) -> Iterator[Form]:
    data = _bytes(text)
    yield _escaped(text)
    yield from _every_character(text, data)
    for shift in range(3):
        yield _base64(data, shift)
    yield _hex(data)
    for codec in ("utf-16-le", "utf-16-be"):
        wide = text.encode(codec, "surrogatepass")
        yield Form(re.escape(wide), len(wide), ((wide, 0),))


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


# ---- escapes: letters and digits stay, the rest may look like this or that


def _escaped(text: str) -> Form:
    units = [_character(char) for char in text]
    where = [0, *accumulate(unit.longest for unit in units)]
    runs = [(match.group()[:_RUN_MAX], where[len(text[: match.start()])]) for match in _RUN.finditer(_ascii(text))]
    longest = max(runs, key=lambda run: len(run[0]), default=(b"", 0))
    anchors = (longest,) if len(longest[0]) >= _RUN_MIN else tuple((one, 0) for one in _spellings(text))
    return Form(b"".join(unit.pattern for unit in units), where[-1], anchors)


def _ascii(text: str) -> bytes:
    """One byte a character."""
    return text.encode("ascii", "replace")


def _character(char: str) -> _Unit:
    if char.isascii() and char.isalnum():
        return _Unit(char.encode(), 1)
    data = _bytes(char)
    points = _utf16(char)
    ways = [
        _ESCAPED.get(char, rb"(?:\\{7}|\\{3}|\\{2}|\\)?" + re.escape(data) if char.isprintable() else re.escape(data)),
        re.escape(data),
        _any_case("".join(f"%{byte:02x}" for byte in data)),
        rb"\\{1,4}".join([b"", *(_any_case(f"u{point:04x}") for point in points)]),
        rb"\\{1,4}".join([b"", *(_any_case(f"x{byte:02x}") for byte in data)]),
        rb"\\{1,4}" + _any_case(f"U{ord(char):08x}"),
        rb"&#0{0,4}%d;" % ord(char),
        rb"&#[xX]0{0,4}" + _any_case(f"{ord(char):x};"),
    ]
    if char in _NAMED:
        ways.append(_NAMED[char])
    if len(data) > 1 and ord(char) < 256:  # by its point, as Python and JavaScript write it
        ways.append(rb"\\{1,4}" + _any_case(f"x{ord(char):02x}"))
    if char == "\n":
        ways += [rb"\r\n[ \t]{0,16}", rb"\n[ \t]{0,16}", rb"\\{1,4}r\\{1,4}n"]
    if char == " ":
        ways.append(rb"\\ ")
    ways.sort(key=len, reverse=True)
    return _Unit(b"(?:" + b"|".join(ways) + b")", max(32, 10 * len(points), 8 * len(data)))


def _any_case(text: str) -> bytes:
    """Hex digits, in capitals or not."""
    return re.sub(rb"[a-f]", lambda digit: b"[%b%b]" % (digit.group(), digit.group().upper()), re.escape(text.encode()))


def _utf16(char: str) -> list[int]:
    wide = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(wide[i : i + 2], "big") for i in range(0, len(wide), 2)]


def _spellings(text: str) -> set[bytes]:
    """How the usual libraries would write it: what has no run of letters and digits to look for is looked for as a whole."""
    found = {text, repr(text)[1:-1], text.replace("/", "\\/")}
    data = _bytes(text)
    for safe in _SAFE:
        quoted = [quote(data, safe=safe), quote_plus(data, safe=safe)]
        found.update(quoted)
        found.update(re.sub("%[0-9A-F]{2}", lambda code: code.group().lower(), one) for one in quoted)
    for ascii_only in (True, False):
        nested = text
        for _ in range(3):
            nested = json.dumps(nested, ensure_ascii=ascii_only)[1:-1]
            found.update((nested, nested.replace("/", "\\/")))
    found.update((html.escape(text), html.escape(text, quote=False), html.escape(text).replace("&#x27;", "&apos;")))
    found.add(text.replace("\n", "\r\n"))
    found.update((quoteattr(text)[1:-1], quoteattr(text, {'"': "&quot;"})[1:-1]))
    return {_bytes(one) for one in found}


def _every_character(text: str, data: bytes) -> Iterator[Form]:
    """Also letters and digits, as some encoders do."""
    codes = [f"%{byte:02x}" for byte in data]
    yield _codes(codes, [b"%"])
    points = [f"u{point:04x}" for char in text for point in _utf16(char)]
    yield _codes(points, [b"\\" * n for n in (1, 2, 4)], prefixed=True)
    yield _codes([f"x{byte:02x}" for byte in data], [b"\\" * n for n in (1, 2, 4)], prefixed=True)


def _codes(codes: Sequence[str], marks: Sequence[bytes], *, prefixed: bool = False) -> Form:
    pattern = b"".join((rb"\\{1,4}" if prefixed else b"") + _any_case(code) for code in codes)
    spelt = [
        b"".join((mark if prefixed else b"") + _cased(code, upper).encode() for code in codes[:_PIECE])
        for mark in marks
        for upper in (False, True)
    ]
    return Form(
        pattern, sum(len(code) + (4 if prefixed else 0) for code in codes), tuple((one, 0) for one in dict.fromkeys(spelt))
    )


def _cased(code: str, upper: bool) -> str:
    return code[0] + code[1:].upper() if upper else code


# ---- base64 and hex: lines may be broken anywhere


def _base64(data: bytes, shift: int) -> Form:
    """shift: bytes that stand before it in its group of three. The characters that its neighbours have a part in are left out."""
    code = base64.b64encode(bytes(shift) + data)[(0, 2, 3)[shift] : (8 * (shift + len(data))) // 6]
    patterns = {b"+": rb"(?:[+-]|%2[Bb]|\\{1,4}u002[Bb])", b"/": rb"(?:\\{0,4}/|_|%2[Ff])"}
    units = [
        _Unit(patterns.get(code[i : i + 1], code[i : i + 1]), 9 if code[i : i + 1] in patterns else 1) for i in range(len(code))
    ]
    safe = code.translate(bytes.maketrans(b"+/", b"-_"))
    longer = {code.replace(b"/", b"\\/"), quote(code, safe="").encode()} - {code}
    return _broken(units, _WRAP, _WRAP_MAX, [(one, _PIECE, 1) for one in dict.fromkeys((code, safe))], longer)


def _hex(data: bytes) -> Form:
    digits = [f"{byte:02x}" for byte in data]
    both = [digits, [pair.upper() for pair in digits]]
    codes = [(mark.join(one).encode(), 4 * (2 + len(mark)), 2 + len(mark)) for one in both for mark in ("", " ", ":")]
    rarer = {mark.join(one[:_PIECE]).encode() for one in both for mark in ("\\x", "\\\\x", ", 0x", "-", ",")}
    return _broken([_Unit(_any_case(pair), 2) for pair in digits], _SEPARATED, _SEPARATED_MAX, codes, rarer)


def _broken(
    units: Sequence[_Unit], gap: bytes, gap_max: int, codes: Iterable[tuple[bytes, int, int]], beginnings: Iterable[bytes]
) -> Form:
    """codes: spellings, each with the size of its pieces and of a unit. A line's end stands in one of two neighbouring pieces at most,
    so that the other is whole."""
    where = [0, *accumulate(unit.longest + gap_max for unit in units)]
    anchors: dict[bytes, int] = dict.fromkeys(beginnings, 0)
    for code, most, per_unit in codes:
        size = min(most, len(code) // 2 // per_unit * per_unit)
        for start in {*range(0, len(code) - size + 1, size), len(code) - size}:
            piece = code[start : start + size]
            anchors[piece] = max(anchors.get(piece, 0), where[-(-start // per_unit)])
    return Form(gap.join(unit.pattern for unit in units), where[-1], tuple(anchors.items()))
