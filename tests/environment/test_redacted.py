"""What a failed step printed goes on without the secrets that it was given."""

from __future__ import annotations

from eval_pipeline.environment.building import without


def test_a_steps_secrets_stand_in_no_error() -> None:
    secrets = {"A": "s3cret", "B": "s3cret-and-more", "C": "", "D": "s3"}
    said = without("npm: s3cret-and-more refused; s3cret\ns3 czNjcmV0LWFuZC1tb3Jl", secrets)
    assert said == "npm: [secret B] refused; [secret A]\n[secret D] [secret B]"
