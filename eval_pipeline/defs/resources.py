import os
from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg

from eval_pipeline.defs.orphans import held
from eval_pipeline.runner.services import Services, open_services
from eval_pipeline.settings import Settings, load_settings
from eval_pipeline.specs.library import Library
from eval_pipeline.store.artifacts import ArtifactStore, open_store
from eval_pipeline.store.records import Records, open_records

PATIENCE_S = 120.0


class EvalsResource(dg.ConfigurableResource):
    """The product's own services, opened inside the body that uses them and closed with it."""

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> "Generator[EvalsResource]":
        """In a run: keeps the mark by which a run whose process died is told apart (see orphans.py)."""
        if context.run is None or context.instance is None:
            yield self
            return
        with held(self.settings(), context.instance, context.run):
            yield self

    def settings(self) -> Settings:
        return load_settings(os.environ)

    def library(self) -> Library:
        return Library(self.settings().worlds_dir)

    def store(self) -> ArtifactStore:
        return open_store(self.settings())

    @contextmanager
    def records(self) -> Generator[Records]:
        with open_records(self.settings(), patience_s=PATIENCE_S) as records:
            yield records

    @contextmanager
    def services(self) -> Generator[Services]:
        with self.records() as records, open_services(self.settings(), records) as services:
            yield services
