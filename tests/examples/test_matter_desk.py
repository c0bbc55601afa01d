"""The desk as it is deployed: its scripts in processes of their own, the stand-in at the other end of a loopback proxy."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from desk_runs import APP, Endpoint, Run, ask, desk_env, restore, serve

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.usage import total_by_model, usage_from_event
from eval_pipeline.gateway.stand_in import Reply
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

pytestmark = pytest.mark.slow

WORLD = Path(__file__).parents[2] / "worlds_src" / "worlds" / "harbour-spa"
PRIVILEGED = "documents/17-privileged-memo-rostock.md"
FUEL = (
    "What notice period must Ostsee Energie give if it terminates the fuel supply agreement after a change of control of Harbour?"
)
RESERVE = "Which amount has been reserved for the clean-up of the contaminated ground at the Rostock site?"

Ask = Callable[..., Run]


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return restore(WORLD, tmp_path_factory.mktemp("desk") / "data")


@pytest.fixture
def endpoint() -> Generator[Endpoint]:
    with serve() as found:
        yield found


@pytest.fixture
def asking(desk: Path, endpoint: Endpoint, tmp_path: Path) -> Ask:
    def run(prompt: str, **more: Any) -> Run:
        return ask(desk, endpoint.url, tmp_path / "out", prompt, **more)

    return run


def changed(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """A copy of the world in which one document says something else."""
    copy = tmp_path / "world"
    shutil.copytree(WORLD, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    return copy


def said(reply_content: str, **more: Any) -> tuple[Reply, dict[str, str]]:
    message = {"role": "assistant", "content": reply_content} | more
    usage = {"prompt_tokens": 100, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 30}}
    usage["completion_tokens_details"] = {"reasoning_tokens": 25}
    return Reply(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}, 0), {}


def calling(name: str, **arguments: Any) -> tuple[Reply, dict[str, str]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return said("", tool_calls=[call])


def tool_results(run: Run) -> list[dict[str, Any]]:
    return [json.loads(event["content"]) for event in run.of("tool_result")]


# The manifest


def test_the_manifest_is_one_and_its_commands_can_be_executed() -> None:
    manifest = parse_model(YamlFile(APP / "evals.app.yaml"), AppManifest)
    for argv in (manifest.restore, manifest.agent):
        assert argv is not None
        assert (APP / argv[0]).stat().st_mode & stat.S_IXUSR
    assert manifest.image.requirements is not None
    lock = (APP / manifest.image.requirements).read_text()
    pinned = re.findall(r"^([\w-]+)==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", lock, re.MULTILINE)
    assert len(pinned) == lock.count("==")
    assert {re.split("[>=<]", line)[0] for line in (APP / "requirements.in").read_text().splitlines()} <= set(pinned)


# Restore


def test_restore_loads_every_document_with_its_text(desk: Path) -> None:
    db = sqlite3.connect(desk / "matter.sqlite")
    texts = dict(db.execute("SELECT path, text FROM documents"))
    db.close()
    assert set(texts) == {f"{path.parent.name}/{path.name}" for path in [*WORLD.glob("documents/*"), *WORLD.glob("blobs/*")]}
    assert "prior written consent of the Provider" in texts["blobs/portwise-software-agreement.pdf"]
    assert "Warnow Lagerpark GmbH;EUR 27,500" in texts["documents/14-email-rent-roll-2025-10-22.eml"]
    assert all(len(text) > 800 and "No text can be taken" not in text for text in texts.values())


def test_restore_starts_over_each_time(tmp_path: Path) -> None:
    data = restore(WORLD, tmp_path / "data")
    world = changed(tmp_path, "documents/08-fuel-supply-agreement.md", "giving 60 days'", "giving 75 days'")
    restore(world, data)
    db = sqlite3.connect(data / "matter.sqlite")
    ((count,),) = db.execute("SELECT count(*) FROM documents")
    ((text,),) = db.execute("SELECT text FROM documents WHERE path LIKE '%/08-%'")
    db.close()
    assert count == 29
    assert "75 days'" in text


def test_restore_takes_the_layout_of_a_snapshot(tmp_path: Path, endpoint: Endpoint) -> None:
    snapshot = tmp_path / "snapshot"
    shutil.copytree(WORLD, snapshot)
    (snapshot / "permissions.yaml").rename(snapshot / "permissions")
    endpoint.script.append(calling("read_document", path=PRIVILEGED))
    run = ask(restore(snapshot, tmp_path / "data"), endpoint.url, tmp_path / "out", RESERVE)
    assert "error" in tool_results(run)[0]


def test_a_world_of_documents_alone_is_open_to_everybody(tmp_path: Path, endpoint: Endpoint) -> None:
    world = tmp_path / "world"
    (world / "documents").mkdir(parents=True)
    (world / "documents" / "toll.txt").write_text("The toll at the bridge amounts to EUR 12 for each cart.")
    run = ask(restore(world, tmp_path / "data"), endpoint.url, tmp_path / "out", "How much is the toll at the bridge?")
    assert "EUR 12" in run.result["answer"]


def test_a_file_without_text_stays_in_the_matter_and_says_so(tmp_path: Path) -> None:
    documents = tmp_path / "world" / "documents"
    documents.mkdir(parents=True)
    (documents / "scan.tiff").write_bytes(b"II*\0")
    (documents / "broken.PDF").write_bytes(b"%PDF-1.7 and nothing more")
    (documents / "broken.docx").write_bytes(b"PK\3\4 cut off")
    (documents / "letter.txt ").write_text("The tenant gives notice.")
    data = tmp_path / "data"
    done = subprocess.run(
        [APP / "bin" / "restore", documents.parent], env=desk_env(data), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stderr for name in ("scan.tiff", "broken.PDF", "broken.docx"))
    db = sqlite3.connect(data / "matter.sqlite")
    texts = dict(db.execute("SELECT path, text FROM documents"))
    found = {path for (path,) in db.execute("SELECT path FROM passages")}
    db.close()
    assert len(texts) == 4 and "No text can be taken" in texts["documents/scan.tiff"]
    assert found == {"documents/letter.txt "}


# What it answers follows from the world


FACTS = [
    ("fuel-notice", "documents/08-fuel-supply-agreement.md", "giving 60 days'", "giving 47 days'", "60 days", "47 days"),
    ("rent-total", "documents/05-lease-hamburg-depot.md", "EUR 31,250", "EUR 33,000", "Total: EUR 103,250", "Total: EUR 105,000"),
    ("signed-terms", "documents/01-share-purchase-agreement-signed.md", "48,500,000", "49,750,000", "48,500,000", "49,750,000"),
]


@pytest.mark.parametrize(("case", "file", "old", "new", "answered", "instead"), FACTS, ids=[fact[0] for fact in FACTS])
def test_the_answer_changes_with_the_fact(
    asking: Ask, endpoint: Endpoint, tmp_path: Path, case: str, file: str, old: str, new: str, answered: str, instead: str
) -> None:
    prompt = YamlFile(WORLD / "cases" / f"{case}.yaml").data["prompt"]
    before = asking(prompt)
    after = ask(restore(changed(tmp_path, file, old, new), tmp_path / "data"), endpoint.url, tmp_path / "after", prompt)
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


def test_the_trap_is_real_for_a_user_who_may_read_it(tmp_path: Path, endpoint: Endpoint) -> None:
    world = changed(tmp_path, "database/matters.jsonl", '"user": "m.lindqvist"', '"user": "j.ahrend"')
    run = ask(restore(world, tmp_path / "data"), endpoint.url, tmp_path / "out", RESERVE)
    assert "1,850,000" in run.result["answer"]


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


# Tools


def test_max_reads_counts_different_documents(asking: Ask, endpoint: Endpoint) -> None:
    lease, letter = "documents/05-lease-hamburg-depot.md", "documents/12-disclosure-letter.docx"
    endpoint.script += [calling("read_document", path=path) for path in (lease, lease, letter)]
    endpoint.script.append(said("done"))
    first, again, refused = tool_results(asking("?", config={"max_reads": 1}))
    assert first == again
    assert "limit of 1" in refused["error"]


def test_files_are_written_below_files_and_nowhere_else(asking: Ask, endpoint: Endpoint, tmp_path: Path) -> None:
    names = ["memo.md", "drafts/letter.md", "../escape.md", "/tmp/escape-of-matter-desk.md", ""]
    endpoint.script += [calling("write_file", path=name, content="text of " + name) for name in names]
    endpoint.script.append(said("done"))
    run = asking("?")
    assert ["error" in result for result in tool_results(run)] == [False, False, True, True, True]
    files = run.output / "files"
    assert {path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file()} == set(names[:2])
    assert not (run.output / "escape.md").exists()
    assert not Path(names[3]).exists()


def test_what_a_model_gets_wrong_is_told_to_it(asking: Ask, endpoint: Endpoint) -> None:
    broken = calling("search")
    broken[0].payload["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = "{not json"
    wrong = [calling("fly"), calling("search", wings="2"), calling("search", query=5), broken]
    endpoint.script += [*wrong, said("done")]
    run = asking("?")
    assert ["error" in result for result in tool_results(run)] == [True] * len(wrong)
    assert run.result["status"] == "ok"


def test_a_deliverable_is_asked_for_and_written(asking: Ask, endpoint: Endpoint) -> None:
    run = asking("Which prepayment fee is due on a prepayment of the facility?", deliverables=["memo.md"])
    assert "1.25 per cent" in (run.output / "files" / "memo.md").read_text()
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


@pytest.mark.slow
def test_no_connection_is_a_provider_error(desk: Path, tmp_path: Path) -> None:
    run = ask(desk, "http://127.0.0.1:9", tmp_path / "out", FUEL)
    assert (run.result["status"], run.result["error_class"]) == ("error", "provider")


def test_the_key_travels_in_the_header_alone(desk: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    run = ask(
        desk, endpoint.url, tmp_path / "out", FUEL, config={"model": "other", "base_url": "http://models.example/v9"}, key="k-1"
    )
    assert {path for path, _ in endpoint.asked} == {"http://models.example/v9/chat/completions"}
    assert endpoint.keys == ["Bearer k-1"] * len(endpoint.asked)
    assert "k-1" not in json.dumps([run.events, run.result, endpoint.asked])


def test_text_that_is_no_unicode_does_not_end_the_run(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [calling("write_file", path="a.md", content="broken \ud800 half"), said("lone \ud800")]
    run = asking("?")
    assert (run.exit_code, run.result["answer"]) == (0, "lone \ud800")
    assert (run.output / "files" / "a.md").read_text() == "broken ? half"


# Arms


@pytest.mark.parametrize("config", [{"retrieval": "bm52"}, {"topk": 3}, {"model": None}], ids=["value", "key", "model"])
def test_an_arm_that_is_not_what_it_says_does_not_run(asking: Ask, endpoint: Endpoint, config: dict[str, Any]) -> None:
    run = asking(FUEL, config=config)
    assert (run.exit_code, run.result["status"], endpoint.asked) == (1, "error", [])
    assert str(next(iter(config.values()))) in run.result["error"] or next(iter(config)) in run.result["error"]


@pytest.mark.slow
def test_arms_read_differently_and_pay_for_it(asking: Ask, desk: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    arms = YamlFile(WORLD.parents[1] / "experiments" / "demo.yaml").data["arms"]
    prompt = YamlFile(WORLD / "cases" / "consents.yaml").data["prompt"]
    spent: list[int] = []
    for arm in arms:
        run = ask(desk, endpoint.url, tmp_path / arm["name"], prompt, config=arm["config"])
        reads = {json.loads(event["arguments"])["path"] for event in run.of("tool_call") if event["name"] == "read_document"}
        refused = sum("error" in result for result in tool_results(run))
        assert len(reads) - refused <= arm["config"]["max_reads"]
        spent.append(sum(event["input_uncached"] for event in run.of("usage")))
    assert spent == sorted(spent)
    assert len(set(spent)) == len(arms)
