"""An experiment with something of everything that a report shows, and its report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import docx
from docx.oxml import parse_xml
from support.project import Project

HOSTILE = (
    '</p></style><script>window.pwned=1</script><img src="x" onerror="window.pwned=1">'
    '<a href="javascript:window.pwned=1">yes</a><iframe src="http://198.51.100.1/"></iframe>'
    '<style>@import url("http://198.51.100.1/x.css");</style>{{ 7 * 7 }} &lt;b&gt; \u202e\x07'
)
N_EVENTS, EVENT_CHARS = 2_600, 4_000  # 10 MB and more

_AGENT = f"""
mkdir -p "$EVALS_OUTPUT/files"
case $(grep -o 'Answer [a-z]*' "$EVALS_CASE" | head -1) in
"Answer plain") grep -q '"say": *"no"' "$EVALS_CASE" && answer no || answer "It is yes,   of course." ;;
"Answer doc") cp /world/documents/memo.docx "$EVALS_OUTPUT/files/memo.docx"; answer yes ;;
"Answer slow") sleep 60 ;;
"Answer long") /usr/bin/python3 -c '
import json, os
with open(os.environ["EVALS_OUTPUT"] + "/transcript.jsonl", "w") as out:
    for n in range({N_EVENTS}):
        print(json.dumps({{"type": "tool_result", "name": "read", "elapsed_s": n, "content": f"event {{n}} " + "x" * {EVENT_CHARS}}}), file=out)
'; answer yes ;;
"Answer hostile") /usr/bin/python3 - <<'PYTHON'
import json, os
text = {HOSTILE!r}
out = os.environ["EVALS_OUTPUT"]
with open(out + "/transcript.jsonl", "w") as stream:
    print(json.dumps({{"type": text, "name": text, "content": text, text: text}}), file=stream)
    print("no JSON: " + text, file=stream)
    print(json.dumps({{"type": "usage", "model": "m", "output": 5}}), file=stream)
open(out + "/files/<img src=x onerror=pwned>.html", "w").write(text)
open(out + "/files/binary.bin", "wb").write(bytes(range(256)))
json.dump({{"status": "ok", "answer": text + " \\ud800"}}, open(out + "/result.json", "w"))
PYTHON
;;
esac
"""
_YES = {"id": "says-yes", "text": "Says yes <b>plainly</b>", "points": 2, "group": "form", "check": {"contains": "yes"}}
_NEVER = {"id": "never", "text": "Says never", "points": -1, "check": {"contains": "never"}}


def tracked_docx() -> bytes:
    """`The notice period is 60 days.`, where 60 is put in and 90 struck out by a reviewer."""
    document = docx.Document()
    paragraph: Any = document.add_paragraph("The notice period is ")._p  # pyright: ignore[reportPrivateUsage]
    space = "xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'"
    for change in (
        f"<w:del {space} w:author='Ada'><w:r><w:delText>90</w:delText></w:r></w:del>",
        f"<w:ins {space} w:author='Ada'><w:r><w:t>60</w:t></w:r></w:ins>",
        f"<w:r {space}><w:t xml:space='preserve'> days.</w:t></w:r>",
    ):
        paragraph.append(parse_xml(change))
    sink = io.BytesIO()
    document.save(sink)
    return sink.getvalue()


def run_reported(project: Project) -> str:
    """Two worlds, five cases, two arms, one trial; cases `slow` run into their limit. Returns the experiment's id."""
    project.world("x", {"a.txt": "a\n"})
    (project.worlds / "worlds" / "x" / "documents" / "memo.docx").write_bytes(tracked_docx())
    project.agent(_AGENT)
    project.case("plain", criteria=[_YES, _NEVER])
    project.case("hostile", criteria=[_YES])
    project.case("long", criteria=[_YES])
    project.case("doc", world="x", criteria=[{**_YES, "check": {"contains": {"text": "60 days", "in": "file:memo.docx"}}}])
    project.case("slow", world="x", criteria=[_YES], limits={"wall_s": 2.0})
    arms = [{"name": name, "ref": "main", "config": {"say": say}} for name, say in (("base", "yes"), ("other", "no"))]
    project.experiment("reported", arms=arms, baseline="base")
    return project.run("reported")["experiment"]


def written(project: Project, name: str, folder: Path) -> Any:
    return project.evals("report", name, "--output", str(folder))
