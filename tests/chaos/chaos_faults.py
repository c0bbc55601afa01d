"""What can befall an engine and what it stands on. Each fault waits for its moment, strikes, and leaves the rest to whoever comes next."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chaos.chaos_round import Actor, Round

from eval_pipeline.sandbox.local import launch
from eval_pipeline.sandbox.local.places import prepare

Fault = Callable[[Round], None]
_TRIED_FOR_S = 5.0  # an output that can't be stored for longer than this may cost its attempt


def killed_when(state: str) -> Fault:
    """kill -9 while a cell is in this state."""

    def strike(round: Round) -> None:
        actor = round.one_at(state)
        time.sleep(round.random.choice([0.0, 0.0, 0.02, 0.1, 0.4]))
        _kill(round, actor)

    return strike


def killed_after_a_result(round: Round) -> None:
    """Between what was committed and the end of its sandbox, or a moment later."""
    before = _count_ended(round)
    round.wait(lambda: _count_ended(round) > before)
    _kill(round, round.one())


def killed_at_any_time(round: Round) -> None:
    time.sleep(round.random.uniform(0.0, 4.0))
    _kill(round, round.one())


def _kill(round: Round, actor: Actor) -> None:
    round.say(f"kill -9 of pid {actor.process.pid}")
    actor.signal(signal.SIGKILL)
    actor.process.wait()


def _count_ended(round: Round) -> int:
    rows = round.stage.ask(
        "select count(*) from evals.attempts where cell_key like %s and ended_at is not null", f"{round.experiment.id}/%"
    )
    return rows[0][0] if rows else 0


def paused(round: Round) -> None:
    """For less than a lease, as a loop that lags or a laptop that sleeps."""
    actor = round.one_at("running")
    actor.signal(signal.SIGSTOP)
    time.sleep(round.random.uniform(1.0, 3.0))
    actor.signal(signal.SIGCONT)


def paused_beyond_its_lease(round: Round) -> None:
    """Another engine takes over, and the first one wakes up in the midst of it or when all is done."""
    state = round.random.choice(["setup", "running", "persisting"])
    actor = round.one_at(state)
    actor.signal(signal.SIGSTOP)
    rows = round.stage.ask("select id from evals.engines where pid = %s order by started_at desc limit 1", actor.process.pid)
    round.say(f"pid {actor.process.pid} is paused beyond its lease while cells are {state}")
    if rows:
        round.stage.ask("update evals.engines set lease_until = now() - interval '1 second' where id = %s", rows[0][0])
    round.start()
    round.wait(lambda: bool(rows) and round.stage.ask(_OWNED, round.experiment.id, rows[0][0]) == [(0,)])
    time.sleep(round.random.uniform(0.0, 3.0))
    actor.signal(signal.SIGCONT)
    round.say(f"pid {actor.process.pid} wakes up")


_OWNED = "select count(*) from evals.cells where experiment_id = %s and engine_id = %s"


def two_at_once(round: Round) -> None:
    time.sleep(round.random.uniform(0.0, 2.0))
    round.start()


def drained(round: Round) -> None:
    actor = round.one_at("running")
    actor.signal(signal.SIGTERM)
    round.say(f"pid {actor.process.pid} is told to go")
    with suppress(Exception):
        actor.process.wait(timeout=30)


def postgres_killed(round: Round) -> None:
    round.one_at("running", "persisting")
    _end_postgres(round, signal.SIGKILL)


def postgres_restarted(round: Round) -> None:
    time.sleep(round.random.uniform(0.0, 3.0))
    _end_postgres(round, signal.SIGINT)  # the "fast" shutdown; whoever misses it starts it again


def _end_postgres(round: Round, number: int) -> None:
    pid = round.stage.postgres_pid()
    round.say(f"signal {number} to Postgres, pid {pid}")
    if pid is not None:
        os.kill(pid, number)


def connections_dropped(round: Round) -> None:
    for _ in range(round.random.randint(1, 4)):
        time.sleep(round.random.uniform(0.1, 0.8))
        round.stage.ask(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = 'evals'"
        )


def disk_full(round: Round) -> None:
    """Of the artifact store; at times for longer than a cell tries to store its output again."""
    if not round.stage.full_disks:
        return
    round.one_at("running", "persisting")
    began = time.time()
    with suppress(OSError), round.stage.filler.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 16))
    round.say("the store is full")
    length_s = round.random.choice([2.0, 3.0, 9.0])
    time.sleep(length_s)
    round.stage.filler.unlink()
    if length_s > _TRIED_FOR_S:
        round.full.append((began, time.time()))


def clock_jumped(round: Round) -> None:
    """Of the engine alone: forth, and back to before it all began."""
    round.one_at("running")
    for _ in range(2):
        offset_s = round.random.choice([-86400 * 3, -3600, -90, 90, 3600, 86400 * 3])
        round.set_clock(offset_s)
        round.say(f"the engines' clock jumps to {offset_s:+d} s")
        time.sleep(round.random.uniform(0.5, 1.5))


def proxy_killed(round: Round) -> None:
    if round.stage.backend != "local":
        return sandbox_lost(round)
    round.one_at("running")
    os.kill(round.stage.proxy_pid(), signal.SIGKILL)
    round.say("kill -9 of the egress proxy")
    return None


def sandbox_lost(round: Round) -> None:
    """The one fault that takes an agent with it."""
    round.wait(lambda: bool(round.sandboxes_with_agents()))
    names = round.sandboxes_with_agents()
    if not names:
        return
    name = round.random.choice(names)
    round.excused.add(name)
    round.say(f"the sandbox {name} is lost")
    if round.stage.modal is not None and round.stage.backend == "modal":
        round.stage.modal.lose(name)
    elif (inmate := launch.inmate(Path(prepare(round.stage.settings.state_dir).scratch) / name)) is not None:
        with suppress(ProcessLookupError):
            os.kill(inmate.pid, signal.SIGKILL)


def everything_killed(round: Round) -> None:
    round.one_at("running", "persisting")
    for actor in round.working():
        actor.signal(signal.SIGKILL)
    _end_postgres(round, signal.SIGKILL)
    if round.stage.backend == "local":
        os.kill(round.stage.proxy_pid(), signal.SIGKILL)
    round.say("engines, Postgres and the egress proxy are killed together")


def redeployed(round: Round) -> None:
    """Killed in the midst of it, and a later release goes on."""
    _kill(round, round.one_at("running"))
    round.tree = round.stage.newer
    round.say("from here on engines are of a later release")


FAULTS: dict[str, Fault] = {
    "killed-setup": killed_when("setup"),
    "killed-running": killed_when("running"),
    "killed-persisting": killed_when("persisting"),
    "killed-result": killed_after_a_result,
    "killed-any": killed_at_any_time,
    "paused": paused,
    "lease-lost": paused_beyond_its_lease,
    "two": two_at_once,
    "drained": drained,
    "postgres-killed": postgres_killed,
    "postgres-restarted": postgres_restarted,
    "connections": connections_dropped,
    "disk-full": disk_full,
    "clock": clock_jumped,
    "proxy": proxy_killed,
    "sandbox": sandbox_lost,
    "everything": everything_killed,
    "redeployed": redeployed,
}
