"""The report as an asset: what the UI's button writes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from defs.conftest import Bench

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_the_asset_writes_the_report_and_links_to_it(bench: Bench) -> None:
    bench.project.case()
    bench.project.experiment("paged")
    name = bench.project.run("paged")["experiment"]
    from eval_pipeline.definitions import defs

    result = defs.resolve_job_def("report_experiment").execute_in_process(instance=bench.instance, partition_key=name)
    (event,) = result.asset_materializations_for_node("report")
    assert (event.partition, event.metadata["pages"].value, event.metadata["dagster/row_count"].value) == (name, 2, 1)
    index = Path(urlsplit(str(event.metadata["link"].value)).path)
    assert index == bench.project.state_dir / "reports" / name / "index.html"
    assert "cells/w.c.a.0.html" in index.read_text() and (index.parent / "cells" / "w.c.a.0.html").is_file()
