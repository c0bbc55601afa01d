"""Who judges (the version), how votes become a verdict, and which votes are still wanted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.scoring.judge_prompt import PROMPT_DIGEST
from eval_pipeline.scoring.judge_reply import SCHEMA_DIGEST

MAX_TOKENS = 4096
VOTE_RULE = "majority of met and not_met, of which an even split asks one more; median of counts; abstentions count for nothing"


def judge_version(judge: JudgeSpec) -> str:
    """Equal for judges that are asked in the same words, in the same way, of the same model."""
    return "judge-" + digest([judge.model_dump(mode="json"), PROMPT_DIGEST, SCHEMA_DIGEST, MAX_TOKENS, VOTE_RULE])[:12]


def decide(votes: Sequence[float | None], per_occurrence: bool) -> float | None:
    """votes: None is an abstention. None: nobody voted. An even split of met and not_met is 0.5."""
    given = [vote for vote in votes if vote is not None]
    if not given:
        return None
    if per_occurrence:
        return float(median(given))
    share = sum(given) / len(given)
    return 0.5 if share == 0.5 else float(share > 0.5)


def wanted(votes: Sequence[float | None], n_votes: int, per_occurrence: bool) -> int:
    """How many more votes are to be asked for: up to `n_votes`, and one more when they are split evenly."""
    if len(votes) < n_votes:
        return n_votes - len(votes)
    given = [vote for vote in votes if vote is not None]
    split = not per_occurrence and bool(given) and sum(given) * 2 == len(given)
    return int(split and len(votes) == n_votes)
