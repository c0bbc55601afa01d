"""Answering by extraction: the sentences of given texts that a question overlaps with, quoted with their source.

No model and no knowledge: what isn't in the texts can't be in the answer. A word counts by its first six letters and is worth
log(1 + N / (1 + n)), where n of the N sentences hold it; `coverage` is the worth of the question's words that a sentence holds,
as a share of the worth of all of them. A word that stands only in the sentence's clause or its source's title counts AROUND.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Jitter = Callable[[str], float]  # a factor near 1 for a text

AROUND, REST = 0.5, 0.15
FOUND = 0.4  # below this coverage the texts don't speak of the question
FOUND_ONE_OF_MANY = 0.25  # the same where each text can hold but one item of a list or sum
NEAR, FAR = 0.6, 0.4  # a further source is named when its best sentence reaches this share of the best one
MAX_PER_SOURCE, MAX_SENTENCES = 2, 3
MAX_ROWS = 20

_STOP_WORDS = """
a about after all also amount an and answer any are as at be been both but by can could did do does draft each euro
every figure file files find following for from give given has have he how if in into is it its know list md me memo
must my name need needs no not of on one only or our please say says she should so state states than that the their them
then there these they this those to txt under up us was we were what when where whether which who whom whose why will
with would write you your
"""
_STOP = frozenset(_STOP_WORDS.split())
_WORD = re.compile(r"[^\W_]+")
_MONEY = re.compile(r"(?:EUR|USD|GBP|€|\$|£)\s?(\d[\d,]*(?:\.\d+)?)")
_PAIR = re.compile(r"(?:^|\| |\] )([^:|\]]{2,40}): ([^|]+)")
_COLUMNS = re.compile(r"\bcolumns?:? ([^.;:\n]+?)(?=,? and (?:an?|the|one) |[.;:\n]|$)", re.I)
_SUM = re.compile(r"\b(?:in all|altogether|total|sum)\b", re.I)
_DURATION = re.compile(
    r"\b(\d+|[a-z]+)\s+(?:business |working |calendar )?(?:days?|weeks?|months?|years?)\b(?!\s+of\s+age)", re.I
)
_DATE = re.compile(r"\b\d{1,2} (?:(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*) \d{4}\b|\b\d{4}-\d\d-\d\d\b")
_MONEY_OR_RATE = re.compile(rf"{_MONEY.pattern}|\d per ?cent\b|\d ?%")
_PART = re.compile(
    r"(?<=[.?!:;])(?<!\bno\.)\s+|(?:,\s+(?:and\s+)?|\s+and\s+)(?=(?:what|which|how|when|who|where|why|does|do|is|are)\b)", re.I
)
_ASKING = re.compile(r"(?:what|which|how|when|who|where|why|does|do|is|are|list)\b", re.I)
_NEGATED = re.compile(r"\b(?:not|no|without|nor|never)\b", re.I)
_NEW_BLOCK = re.compile(r"\s*(?:$|[#|>\[]|(?:From|To|Cc|Date|Subject): |[-*] |\(?[0-9a-z]{1,2}[.)] |\d+(?:\.\d+)+ )")
_SENTENCE_END = re.compile(r"(?<=[a-zäöüß0-9%)\"”][.;?!])\s+(?=[A-Z\"“(*\[§])")


@dataclass(frozen=True)
class Source:
    name: str
    text: str


@dataclass(frozen=True)
class Sentence:
    source: Source
    text: str
    block: str
    score: float = 0.0
    coverage: float = 0.0


def content_words(text: str) -> list[str]:
    """The words of a question worth looking for, in order, once each."""
    words = (word for word in _WORD.findall(text) if word.lower() not in _STOP and (len(word) > 2 or word.isdigit()))
    return list({word.lower(): word for word in words}.values())


def compose(question: str, sources: Sequence[Source], jitter: Jitter) -> str:
    """An answer of quotes, part by part, or the statement that the texts don't hold one."""
    parts = _parts(question)
    ranked = rank(parts[0], question, sources, jitter)
    wanted = _wanted(parts[0])
    fitting = _fitting(ranked, wanted)
    if fitting and fitting[0].coverage >= FOUND_ONE_OF_MANY:
        if wanted is _MONEY and _asks(question, "total", "sum", "altogether"):
            return _total(_one_a_source(_in_force(fitting), NEAR))
        if _asks(question, "every", "all", "each", "list"):
            return _listing(parts[0], _one_a_source(fitting, NEAR))
        if _asks(question, "differ", "agree", "agrees", "correct", "correctly", "contradict", "consistent", "match"):
            return _comparison(_one_a_source(fitting, FAR), wanted or _DURATION)
    answers = [_answer(part, rank(part, question, sources, jitter)) for part in parts]
    quotes = list(dict.fromkeys(_quote(sentence) for answer in answers for sentence in answer))
    return "\n".join(quotes) if quotes else _not_found(ranked, sources)


def report(question: str, sources: Sequence[Source], jitter: Jitter) -> str:
    """A longer text for a file: an answer to each part of the question, and the sources."""
    lines = ["# Memorandum"]
    for part in _parts(question):
        ranked = rank(part, question, sources, jitter)
        found = _answer(part, ranked)
        lines += ["", f"## {part[:1].upper()}{part[1:]}", ""]
        lines += [f"- {_quote(sentence)}" for sentence in found] or [_not_found(ranked, sources)]
    lines += ["", "## Sources read", "", *(f"- {source.name}" for source in sources)]
    return "\n".join(lines) + "\n"


def table(question: str, sources: Sequence[Source], jitter: Jitter) -> str:
    """A table in Markdown for a file: the columns the question names, a row for each sentence that speaks of it.

    Where rows of the texts are labelled with the first column's name, those are the rows; a total is added, never copied.
    """
    named = _COLUMNS.search(question)
    columns = re.split(r",\s*(?:and\s+)?|\s+and\s+", named[1].strip()) if named else ["Item", "Amount", "Source"]
    ranked = _fitting(rank(question, question, sources, jitter), next(filter(None, map(_wanted, columns)), None))
    labelled = [sentence for sentence in ranked if _labelled(columns[0], sentence)]
    rows = [s for s in labelled or ranked if s.score >= (FAR if labelled else NEAR) * (labelled or ranked)[0].score][:MAX_ROWS]
    wants_total = _asks(question, "total", "sum")
    cells = [[_cell(column, s) for column in columns] for s in rows if not (wants_total and _SUM.search(s.text))]
    if wants_total:
        sums = [_grouped(sum(_amount(found) for row in cells if (found := _MONEY.search(row[i])))) for i in range(len(columns))]
        cells.append(["Total", *(sums[i] if _wanted(columns[i]) is _MONEY else "" for i in range(1, len(columns)))])
    lines = [" | ".join(text.replace("|", "/") for text in row) for row in [columns, ["---"] * len(columns), *cells]]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def _cell(column: str, sentence: Sentence) -> str:
    """What the sentence says under that name, else what it holds of the kind the name asks for, else the sentence."""
    if label := _labelled(column, sentence):
        return label
    if _stems(column) & _stems("source document"):
        return sentence.source.name
    kind = _wanted(column)
    match = kind.search(sentence.text) if kind else None
    return match.group() if match else "" if kind else sentence.text


def _labelled(column: str, sentence: Sentence) -> str:
    """The value after the label that shares most words with the column's name; empty without one."""
    asked = _stems(column)
    pairs = [(len(_stems(name) & asked), value.strip()) for name, value in _PAIR.findall(sentence.text)]
    best = max(pairs, key=lambda pair: pair[0], default=(0, ""))
    return best[1] if best[0] else ""


def rank(part: str, question: str, sources: Sequence[Source], jitter: Jitter) -> list[Sentence]:
    """All sentences that share a word with the part, best first; words of the rest of the question weigh little."""
    sentences = [sentence for source in sources for sentence in _sentences(source)]
    asked, rest = (_stems(" ".join(content_words(text))) for text in (part, question))
    stems = [_stems(sentence.text) for sentence in sentences]
    frequency = Counter(stem for found in stems for stem in found & (asked | rest))
    worth = {stem: math.log(1 + len(sentences) / (1 + frequency[stem])) for stem in asked}
    worth |= {stem: REST * math.log(1 + len(sentences) / (1 + frequency[stem])) for stem in rest - asked}
    whole, wanted = sum(worth[stem] for stem in asked), _wanted(part)
    scored: list[Sentence] = []
    for sentence, found in zip(sentences, stems, strict=True):
        if found & asked:
            around = (_stems(_title(sentence.source)) | _stems(sentence.block)) - found
            near, about, other = (
                sum(worth[s] for s in group) for group in (found & asked, around & asked, (found | around) & (rest - asked))
            )
            bonus = 1.3 if wanted is not None and wanted.search(sentence.text) else 1.0
            factor = bonus * _standing(question, sentence.source) * jitter(sentence.text)
            score = factor * (near + AROUND * about + other) / whole
            scored.append(Sentence(sentence.source, sentence.text, sentence.block, score, (near + AROUND * about) / whole))
    return sorted(scored, key=lambda s: (-s.score, s.source.name, s.text))


def _parts(question: str) -> list[str]:
    """The questions in a question: what begins with a word that asks. Instructions such as "quote the clause" are none."""
    pieces = [piece.strip(" ,.;:?\n") for piece in _PART.split(question)]
    asking = [piece for piece in pieces if _ASKING.match(piece) and len(content_words(piece)) > 1]
    return asking or [question]


def _fitting(ranked: Sequence[Sentence], wanted: re.Pattern[str] | None) -> list[Sentence]:
    return [sentence for sentence in ranked if wanted is None or wanted.search(sentence.text)]


def _answer(part: str, ranked: Sequence[Sentence]) -> list[Sentence]:
    """The best sentences of the wanted kind; none when a sentence without it speaks far more of the question."""
    fitting = _fitting(ranked, _wanted(part))
    best = max((sentence.coverage for sentence in ranked), default=0.0)
    if not fitting or fitting[0].coverage < max(FOUND, NEAR * best):
        return []
    return _best(fitting, MAX_SENTENCES)


def _sentences(source: Source) -> list[Sentence]:
    return [
        Sentence(source, part, block) for block in _blocks(source.text) for part in _SENTENCE_END.split(block) if len(part) > 20
    ]


def _blocks(text: str) -> list[str]:
    """Clauses, paragraphs, list items and table rows, each on one line."""
    blocks: list[list[str]] = []
    open_block = False
    for line in text.splitlines():
        if _NEW_BLOCK.match(line) or not open_block:
            blocks.append([])
        blocks[-1].append(line.strip().replace("**", ""))
        open_block = bool(line.strip()) and not line.startswith(("#", "|"))
    return [" ".join(block).strip() for block in blocks if any(block)]


def _stems(text: str) -> set[str]:
    return {word[:6] if len(word) > 6 else word.removesuffix("s") for word in (w.lower() for w in _WORD.findall(text))}


def _title(source: Source) -> str:
    lines = [line for line in source.text.splitlines() if line.strip()]
    return f"{source.name} {next((line for line in lines if line.startswith(('#', 'Subject:'))), lines[0] if lines else '')}"


def _standing(question: str, source: Source) -> float:
    """Asked for what holds, a text that calls itself a draft or superseded weighs half."""
    head = source.text[:400].lower()
    holds = _asks(question, "signed", "binding", "latest", "final", "force", "current", "currently")
    return 0.5 if holds and re.search(r"\bdraft\b|\bsuperseded\b|\bnot signed\b", head) else 1.0


def _asks(question: str, *words: str) -> bool:
    return not set(words).isdisjoint(word.lower() for word in _WORD.findall(question))


def _wanted(question: str) -> re.Pattern[str] | None:
    """What kind of thing an answer must hold."""
    lowered = question.lower()
    if re.search(r"notice period|how long|how many (?:days|weeks|months)|period of notice", lowered):
        return _DURATION
    if re.search(r"how much|\bamounts?\b|\bprice\b|\btotal\b|\bin (?:euro|pounds|eur|gbp|usd)\b", lowered):
        return _MONEY
    if re.search(r"\bfees?\b|\bpenalt(?:y|ies)\b|\brates?\b", lowered):
        return _MONEY_OR_RATE
    return _DATE if re.search(r"\bwhen\b|\bdate\b", lowered) else None


def _one_a_source(sentences: Sequence[Sentence], share: float) -> list[Sentence]:
    """The best sentence of each source whose score reaches `share` of the best of all."""
    first = {sentence.source: sentence for sentence in reversed(sentences)}
    best = sentences[0].score
    return sorted((s for s in first.values() if s.score >= share * best), key=lambda s: -s.score)


def _in_force(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Without the sources that another source amends: the one whose title shares most words with the amendment's."""
    sources = list({sentence.source: None for sentence in sentences})
    gone: set[Source] = set()
    for amendment in (s for s in sources if "amendm" in _stems(_title(s))):
        others = [s for s in sources if s is not amendment]
        if others:
            gone.add(max(others, key=lambda other: len(_stems(_title(other)) & _stems(_title(amendment)))))
    return [sentence for sentence in sentences if sentence.source not in gone]


def _best(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    taken: Counter[Source] = Counter()
    chosen: list[Sentence] = []
    for sentence in sentences:
        if len(chosen) < count and taken[sentence.source] < MAX_PER_SOURCE and sentence.score >= 0.5 * sentences[0].score:
            chosen.append(sentence)
            taken[sentence.source] += 1
    return chosen


def _quote(sentence: Sentence) -> str:
    return f'"{sentence.text}" ({sentence.source.name})'


def _not_found(ranked: Sequence[Sentence], sources: Sequence[Source]) -> str:
    read = ", ".join(source.name for source in sources) or "none"
    answer = f"I could not find this: the documents I read do not state it. Read: {read}."
    return f'{answer} Closest: "{ranked[0].block}" ({ranked[0].source.name})' if ranked else answer


def _total(chosen: Sequence[Sentence]) -> str:
    amounts = [match for sentence in chosen if (match := _MONEY.search(sentence.text))]
    currency = amounts[0].group().removesuffix(amounts[0][1])
    total = _grouped(sum(map(_amount, amounts)))
    quotes = "\n".join(f"- {_quote(sentence)}" for sentence in chosen)
    return f"Total: {currency}{total} ({' + '.join(amount.group() for amount in amounts)}).\n{quotes}"


def _amount(money: re.Match[str]) -> float:
    return float(money[1].replace(",", ""))


def _grouped(amount: float) -> str:
    return f"{amount:,.2f}".removesuffix(".00")


def _listing(question: str, chosen: Sequence[Sentence]) -> str:
    """What denies the question's statement is listed apart, when the question isn't itself about what is not so."""
    denied = [] if _NEGATED.search(question) else [s for s in chosen if _NEGATED.search(s.text)]
    lines = [f"- {_quote(sentence)}" for sentence in chosen if sentence not in denied]
    if denied:
        lines += ["These say something else:", *(f"- {_quote(sentence)}" for sentence in denied)]
    return "\n".join(lines)


def _comparison(chosen: Sequence[Sentence], kind: re.Pattern[str]) -> str:
    values = {match.group(0): sentence.source.name for sentence in reversed(chosen[:4]) if (match := kind.search(sentence.text))}
    quotes = "\n".join(f"- {_quote(sentence)}" for sentence in chosen[:4])
    if len(values) < 2:
        return f"I see no difference between the sources.\n{quotes}"
    return (
        "The sources differ: "
        + " against ".join(f"{value} ({name})" for value, name in reversed(values.items()))
        + f".\n{quotes}"
    )
