"""A compose file as the three commands that any app's services are: up, ready, down. They run in the sandbox that holds the engine.

With Compose v2 (`docker compose`) or v1 (`docker-compose`), whichever the image brings along. No command here pulls: what a file names is
in the image layer, put there by `pull`.
"""

from __future__ import annotations

from collections.abc import Sequence

PROJECT = "app"
_MARK = "/tmp/.compose-containers"  # what `up` created: a layer takes nothing of /tmp along
_OURS = f"--filter label=com.docker.compose.project={PROJECT}"

# COMPOSE_DOCKER_CLI_BUILD: v1 would call a `docker` of any age with options that it may not know
_COMPOSE = f"""
export COMPOSE_PROJECT_NAME={PROJECT} COMPOSE_DOCKER_CLI_BUILD=0 COMPOSE_INTERACTIVE_NO_CLI=1
compose() {{
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}}
"""

# $1: seconds
_ENGINE_READY = """
for tool in dockerd docker; do
  command -v $tool >/dev/null || [ -x /usr/sbin/$tool ] || { echo "the image has no $tool; its Dockerfile has to install it"; exit 9; }
done
docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || {
  echo "the image has no docker compose; its Dockerfile has to install it"; exit 9
}
left=$(($1 * 5))
until docker info >/dev/null 2>&1; do
  left=$((left - 1))
  [ $left -gt 0 ] || { echo "the container engine was not ready within $1 s:"; tail -n 20 /run/evals/logs/engine.stderr; exit 9; }
  sleep 0.2
done
"""

# $0: the file; $1: seconds for the engine
_PULL = f"""{_COMPOSE}{_ENGINE_READY}
compose -f "$0" build && compose -f "$0" up --no-start --no-build && compose -f "$0" down -v
"""

# $0: the file; $1: seconds for the engine. Stays, and ends with the code of the first container that failed
_UP = f"""{_COMPOSE}{_ENGINE_READY}
code_of() {{ docker inspect -f '{{{{.State.ExitCode}}}}' "$1"; }}
compose -f "$0" up -d --no-build || {{
  for id in $(docker ps -aq {_OURS} --filter status=exited); do
    echo "--- $(docker inspect -f '{{{{.Name}}}}' $id) ended with code $(code_of $id)"; docker logs --tail 10 $id
  done
  echo "docker compose up failed; an image that is not in the image layer can't be pulled here"
  exit 1
}}
docker ps -aq --no-trunc {_OURS} >{_MARK}.new && mv {_MARK}.new {_MARK}
while [ -e {_MARK} ]; do
  docker info >/dev/null 2>&1 || {{ sleep 1; docker info >/dev/null || {{ echo "the container engine has ended"; exit 1; }}; }}
  for id in $(docker ps -aq {_OURS} --filter status=exited --filter status=dead); do
    code=$(code_of $id) || continue
    [ "$code" != 0 ] && [ -e {_MARK} ] || continue
    docker logs --tail 20 $id
    echo "the service $(docker inspect -f '{{{{index .Config.Labels "com.docker.compose.service"}}}}' $id) ended with code $code"
    exit "$code"
  done
  sleep 1
done
"""

# Asked again by the caller; within one asking it looks for 5 s. Healthy where there is a health check, else running or ended with 0
_READY = f"""
n=0 told=
while :; do
  waits=
  [ -s {_MARK} ] || waits="docker compose up has not ended"
  for id in $(cat {_MARK} 2>/dev/null); do
    said=$(docker inspect -f '{{{{.Name}}}} {{{{.State.Status}}}} {{{{if .State.Health}}}}{{{{.State.Health.Status}}}}{{{{else}}}}healthy{{{{end}}}} {{{{.State.ExitCode}}}}' $id 2>&1)
    case $said in
    *" running healthy "* | *" exited "*" 0") ;;
    *) waits="$waits $said;" ;;
    esac
  done
  [ -n "$waits" ] || exit 0
  n=$((n + 1))
  [ "$waits" = "$told" ] || echo "not healthy: $waits"
  told=$waits  # said at once: whoever asks may not wait for the end
  [ $n -lt 25 ] || exit 1
  sleep 0.2
done
"""

_DOWN = f"""{_COMPOSE}
rm -f {_MARK}
for id in $(docker ps -aq); do  # whoever else is on its networks would keep them from going
  [ "$(docker inspect -f '{{{{index .Config.Labels "com.docker.compose.project"}}}}' $id)" = {PROJECT} ] || docker rm -f $id
done
compose -f "$0" down -t 5
"""

LIST = ("docker", "ps", "-a", "--format", "{{.ID}} {{.Names}}")  # newest first


def pull(file: str, engine_s: float) -> Sequence[str]:
    """Builds and pulls every image of the file, and leaves no container."""
    return ("/bin/sh", "-c", _PULL, file, str(int(engine_s)))


def up(file: str, engine_s: float) -> Sequence[str]:
    return ("/bin/sh", "-c", _UP, file, str(max(1, int(engine_s))))


def ready() -> Sequence[str]:
    return ("/bin/sh", "-c", _READY)


def down(file: str) -> Sequence[str]:
    return ("/bin/sh", "-c", _DOWN, file)


def containers(listed: bytes) -> dict[str, str]:
    """Of what LIST printed: a container's name -> its id; the services first, then what an agent started."""
    pairs = [line.split() for line in reversed(listed.decode(errors="replace").splitlines())]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}
