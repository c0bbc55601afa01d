import dagster as dg

from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.runner.notify import send, tell_state
from eval_pipeline.store.notices import Notices


@dg.sensor(minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def send_notifications(context: dg.SensorEvaluationContext, evals: EvalsResource):
    """Tell EVALS_WEBHOOK_URL of finished experiments, budgets, infrastructure failures, stale images and secrets, and leaks."""
    settings = evals.settings()
    if settings.webhook_url is None:
        return dg.SkipReason("EVALS_WEBHOOK_URL is not set")
    with evals.records() as records:
        tell_state(settings, records)
        n_sent = send(settings, records)
        outbox = Notices(records.database).outbox()
    if outbox.error is not None and outbox.waiting:
        context.log.warning(f"{outbox.waiting} notices wait for the webhook: {outbox.error}")
    return dg.SkipReason(f"{n_sent} sent, {outbox.waiting} waiting, {outbox.given_up} given up")
