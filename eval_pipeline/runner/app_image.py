"""The image of the app's branch head: built ahead of the cells that will stand on it, and how far it is behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.environment.gone import built_again
from eval_pipeline.environment.images import AppSource
from eval_pipeline.runner.services import Services
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_app, refuse_misfits
from eval_pipeline.store.layers import IMAGE, LayerRow

BUILDING = "app-image"
"""Held while an image is built ahead: one at a time in a place, whoever asks (see BuildLocks)."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The app at a revision; its commit and tree are those of `arm`."""

    source: AppSource
    arm: LockedArm
    branch: str


@dataclass(frozen=True, kw_only=True)
class HeadImage:
    """built: it was made now; else it was there. published: under which name people find it on the backend; None where it has none."""

    head: Head
    row: LayerRow
    built: bool
    published: str | None


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """What cells of the branch's head stand on. head: its commit. image: None when no ancestor of it has one.

    behind: commits that the head is ahead of the image; None without one. age_s: since it was built.
    """

    branch: str
    head: str
    image: LayerRow | None
    behind: int | None
    age_s: float | None


def resolve_head(library: Library, backend: str, ref: str | None = None) -> Head:
    """At `ref`; None: the branch that app.yaml names, as it is now. Raises SpecError."""
    app = library.only_app()
    repo = library.app_repo(app)
    arm = lock_app(repo, app.path, ref or app.branch)
    refuse_misfits("the app", arm, backend, [])
    return Head(source=AppSource.of(repo, app.path, [arm]), arm=arm, branch=app.branch)


async def build_image(services: Services, library: Library, ref: str | None = None) -> HeadImage:
    """The whole image of `ref`, resolved once its turn has come. Raises SpecError and BuildError; what was there stays in use."""

    async def make() -> HeadImage:
        head = await asyncio.to_thread(resolve_head, library, services.backend.name, ref)
        arm = head.arm
        row = await services.layers.images.image(head.source, arm.commit, arm.tree, arm.manifest)
        published = await services.backend.publish(row.ref, f"{row.app}:{arm.commit or arm.tree}")
        return HeadImage(head=head, row=row, built=row.created_at is None, published=published)

    return await services.layers.builder.alone(BUILDING, lambda: built_again(make))


def image_status(services: Services, library: Library) -> ImageStatus:
    """Raises SpecError when there is no such branch."""
    app = library.only_app()
    repo = library.app_repo(app)
    head = git.resolve(repo, app.branch)
    images = [row for row in services.layers.book.rows.all() if row.kind == IMAGE and services.backend.layer(row.key) is not None]
    found = git.nearest_ancestor(repo, head, {row.commit for row in images if row.commit is not None})
    image = next((row for row in images if row.commit == found), None) if found is not None else None
    if image is None or image.commit is None or image.created_at is None:
        return ImageStatus(branch=app.branch, head=head, image=None, behind=None, age_s=None)
    return ImageStatus(
        branch=app.branch,
        head=head,
        image=image,
        behind=git.commits_between(repo, image.commit, head),
        age_s=(datetime.now(UTC) - image.created_at).total_seconds(),
    )
