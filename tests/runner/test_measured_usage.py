"""A check of the usage holds what the gateway counted against its limit, whatever the transcript says."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.domain.usage import Usage
from eval_pipeline.runner.judging import BundleTask, report_on_bundle

RUBRIC = Rubric(criteria=(Criterion(id="thrifty", text="Uses little", points=1, check={"usage": {"output_tokens": 10}}),))
FILES = {
    "out/result.json": b'{"status": "ok", "answer": "yes"}',
    "out/transcript.jsonl": b'{"type": "usage", "model": "m", "output": 1}\n',
}


def test_what_was_measured_is_checked_and_not_what_the_transcript_claims(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    task = BundleTask(path=path, bundle="0" * 64, rubric=RUBRIC, world_digest="0" * 64, world_dir=tmp_path)
    assert [one.verdict for one in report_on_bundle(task).verdicts] == [1.0]
    measured = replace(task, measured=(Usage(model="m", output=5000),))
    assert [one.verdict for one in report_on_bundle(measured).verdicts] == [0.0]
    assert [one.verdict for one in report_on_bundle(replace(task, measured=())).verdicts] == [None], "no call was measured"
