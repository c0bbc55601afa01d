"""Makes the data beside it: `python tests/specs/importers/data/make.py`. Every party and every fact is invented.

The table has what published tables have: a byte order mark, CRLF between rows, cells of many lines with either line end,
numbers without a dot, "(3 point)", sections with and without a colon. The names on disk differ from those in the table: one
is decomposed Unicode, one ends with a blank, one has other case.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

from reportlab.pdfgen.canvas import Canvas

HERE = Path(__file__).parent
DOCUMENTS = {
    "7a. Exhibit — Kiel Lease.PDF": [
        "Lease of Quay 4, Kiel, between Nordkai Grund GmbH and Harbour Logistics GmbH.",
        "The lease ends on 30 June 2031.",
        "A change of control needs the consent of the landlord in writing.",
    ],
    "7b. Side Letter.pdf ": [
        "Nordkai Grund GmbH to Harbour Logistics GmbH, 3 March 2024.",
        "The landlord may refuse its consent for cause only.",
    ],
    unicodedata.normalize("NFD", "7c. Protokoll der Geschäftsführung.pdf"): [
        "Minutes of 9 April 2024.",
        "The managers resolved to ask for the consent before 1 May 2024.",
    ],
    "7d. Email of M. Orth.PDF": ["From: M. Orth. The landlord told me on 12 April 2024 that it will not consent."],
}
HEADER = ["Number", "Category", "Task Type", "Task", "Prompt", "Document(s)", "Rubric"]
MEMO = """Affirmative Points:

1. Structure:
        a Is the response a memo with a heading for each question? (2 points)
2. Style: N/A
3. Substance:
        a. Lease:
                i. Does the response state that the lease ends on 30 June 2031? (1 point)
                ii. Does the response state that a change of control needs consent
                    in writing? (3 point)
        b. Side letter (2024):
                i. Does the response state that the landlord’s refusal needs a cause (e.g., a competitor)? (1.5 points)

Negative Points

1. -1 point for every hallucination
2. -0.5 points for every statement of accurate but extraneous or misconstrued information
"""
TIMELINE = """Negative Points:

1) \u22120.5 point for every date out of order

Affirmative Points:

1) Structure: N/A
2) Substance:
\t(a) Chronology:
\t\t(i) Does the timeline begin with the side letter of 3 March 2024? (1 point)
\t\t(ii) Does the timeline have the minutes of 9 April 2024? (1 point)
\t(b) Does the response say that “M. Orth” reports a refusal? (.5 points)"""
CLAUSE = """Affirmative Points:

1. Structure:
        a. Is the response one clause? (1 point)
2. Style:
        a. Is the clause free of Latin? (1 point)
3. Substance:
        a. Does the clause end the contract when control changes? (2 points)
        b. Does the clause give notice of 30 days? (1 point)

Negative Points:

1. -2 points if the clause names a party
2. -1 point for every hallucination"""
ROWS = [
    [
        "7",
        "Transactional",
        "Due Diligence",
        "Summarise the consents a share sale needs. ",
        "Which consents does the sale of Harbour Logistics need?\nAnswer in a memo.",
        "7a. Exhibit — Kiel Lease.PDF\r\n7b. Side Letter.pdf  ",
        MEMO.replace("\n", "\r\n"),
    ],
    [
        "8",
        "Litigation",
        "Document Review & Analysis",
        "Make a timeline, with gaps.",
        'Make a timeline of the "consent" and name what contradicts it.',
        "7b. Side Letter.pdf\n7c. Protokoll der Geschäftsführung.pdf\n7d. Email of M. Orth.pdf ",
        TIMELINE,
    ],
    [
        "12",
        "Transactional",
        "Drafting",
        "Draft a clause.",
        "Draft a change of control clause.",
        "N/A",
        CLAUSE,
    ],
]


def write_pdf(path: Path, lines: list[str]) -> None:
    canvas = Canvas(str(path), invariant=1)
    for index, line in enumerate(lines):
        canvas.drawString(72, 770 - 18 * index, line)
    canvas.save()


def main() -> None:
    for name, lines in DOCUMENTS.items():
        write_pdf(HERE / "documents" / name, lines)
    table = io.StringIO(newline="")
    csv.writer(table, lineterminator="\r\n").writerows([HEADER, *ROWS])
    (HERE / "samples.csv").write_bytes(b"\xef\xbb\xbf" + table.getvalue().encode())


if __name__ == "__main__":
    main()
