"""The desk as it is deployed: its commands in a sandbox, the stand-in at the other end of the sandbox's proxy."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from desk_runs import APP, Cell, Endpoint, Machine, Run, calling, copied, said, tool_results

from eval_pipeline.domain.usage import total_by_model, usage_from_event
from eval_pipeline.gateway.stand_in import Reply
from eval_pipeline.specs.yaml_file import YamlFile

pytestmark = pytest.mark.slow

CASES = Path(__file__).parents[2] / "worlds_src" / "worlds" / "harbour-spa" / "cases"
PRIVILEGED = "documents/17-privileged-memo-rostock.md"
FUEL = (
    "What notice period must Ostsee Energie give if it terminates the fuel supply agreement after a change of control of Harbour?"
)
RESERVE = "Which amount has been reserved for the clean-up of the contaminated ground at the Rostock site?"

Ask = Callable[..., Run]


@pytest.fixture
def cell(machine: Machine, harbour: Path, endpoint: Endpoint) -> Generator[Cell]:
    with machine.desk(harbour, endpoint=endpoint) as found:
        yield found


@pytest.fixture
def asking(cell: Cell) -> Ask:
    return cell.agent


def changed(harbour: Path, file: str, old: str, new: str) -> Path:
    """A copy of the world in which one document says something else."""
    copy = copied(harbour)
    text = (copy / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    return copy


# The manifest


def test_the_manifest_is_one_and_its_commands_can_be_executed(machine: Machine) -> None:
    manifest, services = machine.manifest, machine.manifest.services
    assert services is not None
    commands = (manifest.build, manifest.reset, manifest.restore, manifest.agent, manifest.dump)
    for argv in (*commands, services.up, services.ready, services.down):
        assert argv is not None
        assert (APP / argv[0]).stat().st_mode & stat.S_IXUSR
    assert manifest.image.requirements is not None
    lock = (APP / manifest.image.requirements).read_text()
    pinned = re.findall(r"^([\w-]+)==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", lock, re.MULTILINE)
    assert len(pinned) == lock.count("==")
    assert {re.split("[>=<]", line)[0] for line in (APP / "requirements.in").read_text().splitlines() if line[0] != "#"} <= set(
        pinned
    )


# Restore


def test_restore_loads_every_document_with_its_text(cell: Cell, harbour: Path) -> None:
    texts = cell.texts()
    assert set(texts) == {f"{path.parent.name}/{path.name}" for path in [*harbour.glob("documents/*"), *harbour.glob("blobs/*")]}
    assert "prior written consent of the Provider" in texts["blobs/portwise-software-agreement.pdf"]
    assert "Warnow Lagerpark GmbH;EUR 27,500" in texts["documents/14-email-rent-roll-2025-10-22.eml"]
    assert all(len(text) > 800 and "No text can be taken" not in text for text in texts.values())


def test_restore_starts_over_each_time(machine: Machine, harbour: Path) -> None:
    world = changed(harbour, "documents/08-fuel-supply-agreement.md", "giving 60 days'", "giving 75 days'")
    with machine.sandbox(machine.prepared(harbour), world=world) as cell:
        assert cell.run("bin/restore", "/world").exit_code == 0
        cell.up()
        texts = cell.texts()
    assert len(texts) == 29
    assert "75 days'" in texts["documents/08-fuel-supply-agreement.md"]


def test_restore_leaves_no_process(machine: Machine, harbour: Path) -> None:
    with machine.sandbox(machine.image, world=harbour) as cell:
        done = cell.run("bin/restore", "/world")
        assert (done.exit_code, len(cell.processes())) == (0, 0), done.err


def test_permissions_may_be_named_without_a_suffix(machine: Machine, harbour: Path, endpoint: Endpoint) -> None:
    world = copied(harbour)
    (world / "permissions.yaml").rename(world / "permissions")
    endpoint.script.append(calling("read_document", path=PRIVILEGED))
    with machine.desk(world, endpoint=endpoint) as cell:
        assert "error" in tool_results(cell.agent(RESERVE))[0]


def test_a_world_of_documents_alone_is_open_to_everybody(
    machine: Machine, endpoint: Endpoint, made_world: Callable[..., Path]
) -> None:
    world = made_world({"toll.txt": b"The toll at the bridge amounts to EUR 12 for each cart."})
    with machine.desk(world, endpoint=endpoint) as cell:
        assert "EUR 12" in cell.agent("How much is the toll at the bridge?").result["answer"]


def test_a_file_without_text_stays_in_the_matter_and_says_so(machine: Machine, made_world: Callable[..., Path]) -> None:
    files = {"scan.tiff": b"II*\0", "broken.PDF": b"%PDF-1.7 and nothing more", "broken.docx": b"PK\3\4 cut off"}
    world = made_world({**files, "letter.txt ": b"The tenant gives notice.", "nul.txt": b"a\0b"})
    with machine.sandbox(machine.image, world=world) as cell:
        done = cell.run("bin/restore", "/world")
        assert done.exit_code == 0, done.err
        assert all(name in done.err for name in files)
        cell.up()
        texts = cell.texts()
        found = {path for (path,) in cell.sql("SELECT path FROM passages")}
    assert len(texts) == 5 and "No text can be taken" in texts["documents/scan.tiff"]
    assert found == {"documents/letter.txt ", "documents/nul.txt"}


# What it answers follows from the world


FACTS = [
    ("fuel-notice", "documents/08-fuel-supply-agreement.md", "giving 60 days'", "giving 47 days'", "60 days", "47 days"),
    ("rent-total", "documents/05-lease-hamburg-depot.md", "EUR 31,250", "EUR 33,000", "Total: EUR 103,250", "Total: EUR 105,000"),
    ("signed-terms", "documents/01-share-purchase-agreement-signed.md", "48,500,000", "49,750,000", "48,500,000", "49,750,000"),
]


@pytest.mark.parametrize(("case", "file", "old", "new", "answered", "instead"), FACTS, ids=[fact[0] for fact in FACTS])
def test_the_answer_changes_with_the_fact(
    machine: Machine, harbour: Path, asking: Ask, case: str, file: str, old: str, new: str, answered: str, instead: str
) -> None:
    prompt = YamlFile(CASES / f"{case}.yaml").data["prompt"]
    before = asking(prompt)
    with machine.desk(changed(harbour, file, old, new), endpoint=Endpoint()) as other:
        after = other.agent(prompt)
    assert before.result["status"] == after.result["status"] == "ok"
    assert answered in before.result["answer"]
    assert instead in after.result["answer"]
    assert answered not in after.result["answer"]


def test_what_only_the_privileged_document_holds_is_not_found(asking: Ask, endpoint: Endpoint) -> None:
    run = asking(RESERVE, config={"top_k": 20, "max_reads": 20})
    assert "could not find" in run.result["answer"]
    sent = json.dumps(endpoint.asked)
    assert "1,850,000" not in sent
    assert "17-privileged" not in sent


def test_the_trap_is_real_for_a_user_who_may_read_it(machine: Machine, harbour: Path, endpoint: Endpoint) -> None:
    world = changed(harbour, "database/matters.jsonl", '"user": "m.lindqvist"', '"user": "j.ahrend"')
    with machine.desk(world, endpoint=endpoint) as cell:
        assert "1,850,000" in cell.agent(RESERVE).result["answer"]


@pytest.mark.parametrize("retrieval", ["bm25", "keyword"])
def test_no_tool_shows_a_document_that_may_not_be_read(asking: Ask, endpoint: Endpoint, retrieval: str) -> None:
    endpoint.script += [
        calling("list_documents"),
        calling("search", query="reserve of EUR 1,850,000 Geolabor Nord hydrocarbons privileged"),
        calling("read_document", path=PRIVILEGED),
        calling("read_document", path="documents/99-nothing.md"),
        said("done"),
    ]
    listed, found, refused, absent = tool_results(asking("?", config={"retrieval": retrieval, "top_k": 50}))
    assert len(listed["documents"]) == 28
    assert found["hits"]
    assert "17-privileged" not in json.dumps([listed, found])
    assert "Geolabor" not in json.dumps(found)
    assert refused == {"error": absent["error"].replace("documents/99-nothing.md", PRIVILEGED)}


def test_an_agent_whose_services_are_gone_says_so(cell: Cell, endpoint: Endpoint) -> None:
    cell.run("bin/down")
    run = cell.agent(FUEL)
    assert (run.exit_code, run.result["status"], endpoint.asked) == (1, "error", [])
    assert "document service" in run.result["error"]


# Tools


def test_max_reads_counts_different_documents(asking: Ask, endpoint: Endpoint) -> None:
    lease, letter = "documents/05-lease-hamburg-depot.md", "documents/12-disclosure-letter.docx"
    endpoint.script += [calling("read_document", path=path) for path in (lease, lease, letter)]
    endpoint.script.append(said("done"))
    first, again, refused = tool_results(asking("?", config={"max_reads": 1}))
    assert first == again
    assert "limit of 1" in refused["error"]


def test_files_are_written_below_files_and_nowhere_else(cell: Cell, endpoint: Endpoint) -> None:
    names = ["memo.md", "drafts/letter.md", "../escape.md", "/tmp/escape-of-matter-desk.md", ""]
    endpoint.script += [calling("write_file", path=name, content="text of " + name) for name in names]
    endpoint.script.append(said("done"))
    run = cell.agent("?")
    assert ["error" in result for result in tool_results(run)] == [False, False, True, True, True]
    assert set(run.files) == set(names[:2])
    assert "escape.md" not in cell.out()
    assert cell.run("test", "-e", names[3]).exit_code == 1


def test_what_a_model_gets_wrong_is_told_to_it(asking: Ask, endpoint: Endpoint) -> None:
    broken = calling("search")
    broken[0].payload["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = "{not json"
    wrong = [calling("fly"), calling("search", wings="2"), calling("search", query=5), broken]
    endpoint.script += [*wrong, said("done")]
    run = asking("?")
    assert ["error" in result for result in tool_results(run)] == [True] * len(wrong)
    assert run.result["status"] == "ok"


def test_the_tools_change_the_matter_as_the_user(cell: Cell, endpoint: Endpoint) -> None:
    letter = "documents/12-disclosure-letter.docx"
    endpoint.script += [
        calling("create_document", path="documents/30-reply.docx", content="# Reply\n\nWe agree to the draft."),
        calling("edit_docx", path="documents/30-reply.docx", action="track", find="agree", text="object"),
        calling("edit_docx", path=letter, action="comment", find="no such words", text="?"),
        calling("save_review", document=letter, column="dated", value="yes"),
        calling("save_review", document=PRIVILEGED, column="dated", value="yes"),
        calling("list_records", table="tabular_reviews"),
        calling("list_records", table="secrets"),
        calling("read_document", path="documents/30-reply.docx"),
        said("done"),
    ]
    made, edited, not_edited, saved, not_saved, listed, no_table, read = tool_results(cell.agent("?"))
    assert (made["version"], edited["version"]) == (1, 2)
    assert "does not stand" in not_edited["error"]
    assert (saved["reviewed_by"], saved["column"]) == ("m.lindqvist", "dated")
    assert "may read" in not_saved["error"] and "no table" in no_table["error"]
    assert saved in listed["records"]
    assert "We object to the draft." in read["text"]


def test_a_deliverable_is_asked_for_and_written(asking: Ask, endpoint: Endpoint) -> None:
    run = asking("Which prepayment fee is due on a prepayment of the facility?", deliverables=["memo.md"])
    assert b"1.25 per cent" in run.files["memo.md"]
    assert "memo.md" in endpoint.asked[0][1]["messages"][-1]["content"]


# The conversation with the model


def test_it_speaks_through_the_proxy_to_the_stand_in(asking: Ask, endpoint: Endpoint) -> None:
    run = asking(FUEL)
    assert {path for path, _ in endpoint.asked} == {"http://model-stand-in/v1/chat/completions"}
    assert {body["model"] for _, body in endpoint.asked} == {"stand-in"}
    assert len(run.of("usage")) == len(endpoint.asked)
    (total,) = total_by_model([usage_from_event(event) for event in run.of("usage")])
    assert total.model == "stand-in"
    assert total.cache_read > 0


def test_usage_is_split_into_disjoint_classes(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script.append(said("fine"))
    (event,) = asking("?").of("usage")
    usage = usage_from_event(event)
    assert (usage.input_uncached, usage.cache_read, usage.output, usage.reasoning) == (70, 30, 40, 25)
    assert (usage.cache_write_5m, usage.cache_write_1h) == (0, 0)


def test_the_transcript_pairs_calls_with_results(asking: Ask) -> None:
    run = asking(FUEL)
    assert [event["id"] for event in run.of("tool_call")] == [event["id"] for event in run.of("tool_result")]
    assert run.of("message")[-1]["content"] == run.result["answer"]
    assert {event["type"] for event in run.events} == {"message", "tool_call", "tool_result", "usage"}


def test_the_last_turn_allows_no_tool(asking: Ask, endpoint: Endpoint) -> None:
    run = asking(FUEL, limits={"wall_s": 60.0, "cost_usd": None, "turns": 2})
    assert [body["tool_choice"] for _, body in endpoint.asked] == ["auto", "none"]
    assert run.result["status"] == "ok"
    assert run.result["answer"]


def test_a_model_that_ignores_the_last_turn_ends_in_an_error(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [calling("list_documents")] * 2
    run = asking("?", limits={"wall_s": 60.0, "cost_usd": None, "turns": 2})
    assert (run.exit_code, run.result["status"], run.result["error_class"]) == (1, "error", None)
    assert "2 turns" in run.result["error"]


def test_a_refusal_is_a_refusal(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script.append(said("", refusal="I can't help with that."))
    run = asking("?")
    assert (run.exit_code, run.result["status"], run.result["error"]) == (0, "refusal", "I can't help with that.")


def test_a_busy_provider_is_tried_again(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [(Reply(status, {}, 0), {"Retry-After": "0"}) for status in (429, 500, 503)]
    assert asking(FUEL).result["status"] == "ok"
    assert [body for _, body in endpoint.asked[:4]] == [endpoint.asked[0][1]] * 4


def test_a_provider_that_stays_busy_is_named_as_the_cause(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [(Reply(529, {"busy": True}, 0), {"Retry-After": "0"})] * 9
    run = asking(FUEL)
    assert len(endpoint.asked) == 4
    assert (run.exit_code, run.result["status"], run.result["error_class"]) == (1, "error", "provider")
    assert run.of("error")[0]["error_class"] == "provider"


def test_a_refused_request_is_not_repeated_and_not_the_providers_fault(asking: Ask, endpoint: Endpoint) -> None:
    run = asking(FUEL, config={"temperature": 9})
    assert len(endpoint.asked) == 1
    assert (run.result["status"], run.result["error_class"]) == ("error", None)
    assert "temperature" in run.result["error"]


def test_no_connection_is_a_provider_error(machine: Machine, harbour: Path) -> None:
    with machine.desk(harbour) as cell:
        run = cell.agent(FUEL)
    assert (run.result["status"], run.result["error_class"]) == ("error", "provider")


def test_the_key_travels_in_the_header_alone(machine: Machine, harbour: Path, endpoint: Endpoint) -> None:
    with machine.desk(harbour, endpoint=endpoint, secrets={"MODEL_API_KEY": "k-1"}) as cell:
        run = cell.agent(FUEL, config={"model": "other", "base_url": "http://models.example/v9"})
    assert {path for path, _ in endpoint.asked} == {"http://models.example/v9/chat/completions"}
    assert endpoint.keys == ["Bearer k-1"] * len(endpoint.asked)
    assert "k-1" not in json.dumps([run.events, run.result, endpoint.asked])


def test_text_that_is_no_unicode_does_not_end_the_run(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [calling("write_file", path="a.md", content="broken \ud800 half"), said("lone \ud800")]
    run = asking("?")
    assert (run.exit_code, run.result["answer"]) == (0, "lone \ud800")
    assert run.files["a.md"] == b"broken ? half"


# Arms


@pytest.mark.parametrize("config", [{"retrieval": "bm52"}, {"topk": 3}, {"model": None}], ids=["value", "key", "model"])
def test_an_arm_that_is_not_what_it_says_does_not_run(asking: Ask, endpoint: Endpoint, config: dict[str, Any]) -> None:
    run = asking(FUEL, config=config)
    assert (run.exit_code, run.result["status"], endpoint.asked) == (1, "error", [])
    assert str(next(iter(config.values()))) in run.result["error"] or next(iter(config)) in run.result["error"]


def test_arms_read_differently_and_pay_for_it(machine: Machine, harbour: Path) -> None:
    arms = YamlFile(CASES.parents[2] / "experiments" / "demo.yaml").data["arms"]
    prompt = YamlFile(CASES / "consents.yaml").data["prompt"]
    spent: list[int] = []
    for arm in arms:
        with machine.desk(harbour, endpoint=Endpoint()) as cell:
            run = cell.agent(prompt, config=arm["config"])
        reads = {json.loads(event["arguments"])["path"] for event in run.of("tool_call") if event["name"] == "read_document"}
        refused = sum("error" in result for result in tool_results(run))
        assert len(reads) - refused <= arm["config"]["max_reads"]
        spent.append(sum(event["input_uncached"] for event in run.of("usage")))
    assert spent == sorted(spent)
    assert len(set(spent)) == len(arms)
