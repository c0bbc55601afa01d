"""A container engine in a Modal sandbox: PID 1 starts it as root, and only commands that are in its group can speak to it.

What an image must bring along for it: dockerd with containerd and runc, the client, compose, and iptables. Nothing here knows Modal.
"""

from __future__ import annotations

from eval_pipeline.sandbox.base import RUN_DIR, Engine

GID = 2375
SOCKET = "/run/docker.sock"
ENVIRONMENT = {"DOCKER_HOST": f"unix://{SOCKET}"}
_PID_FILE = "/run/docker.pid"
_NOWHERE = "http://127.0.0.1:9"
_LOG_LIMIT = "--log-driver json-file --log-opt max-size=10m --log-opt max-file=1"

# A pull goes through the proxy of its engine, and there is none: what no layer holds can't be had while a cell runs
_NO_PULLS = f"export HTTP_PROXY={_NOWHERE} HTTPS_PROXY={_NOWHERE}\n"

# Its directory must not be the user's to move. What an engine that was cut off left in /run would keep this one from starting
_START = f"""export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"; umask 022; mkdir -p {RUN_DIR}/logs /var/lib/docker /etc/docker
chown root:root /var /var/lib /etc/docker; chmod 1777 /var /var/lib
rm -rf {_PID_FILE} {SOCKET} /run/docker
exec 3>>{RUN_DIR}/logs/engine.stderr
options=
iptables -t nat -S >/dev/null 2>&1 || {{
  options="--iptables=false --ip6tables=false"
  echo "no packet filter here: published ports and the names of services may not work" >&3
}}
dockerd -H unix://{SOCKET} -G {GID} --exec-root /run/docker --pidfile {_PID_FILE} {_LOG_LIMIT} $options </dev/null >&3 2>&1 3>&- &
exec 3>&-
while :; do sleep 3600 & wait $!; done"""

# Before a layer is sealed: containers end with the engine, and it writes down what it holds. It makes these directories anew at each
# start and moves the old ones away, which an overlay over the layer refuses
STOP = f"""if [ -s {_PID_FILE} ]; then
  pid=$(cat {_PID_FILE})
  kill "$pid" 2>/dev/null || :
  n=0
  while [ -e "/proc/$pid" ]; do
    n=$((n + 1))
    [ $n -lt 600 ] || {{ echo "the container engine does not end" >&2; exit 9; }}
    sleep 0.1
  done
fi
rm -rf {_PID_FILE} {SOCKET} /run/docker /var/lib/docker/tmp /var/lib/docker/runtimes /var/lib/docker/gen-runtimes*
"""


def entrypoint(engine: Engine) -> tuple[str, ...]:
    return ("sh", "-c", (_NO_PULLS if engine is Engine.CACHED else "") + _START)
