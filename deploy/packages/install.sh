#!/bin/sh
# Run when a package is installed or upgraded: makes the environment of the wheels beside this file and lays down what
# the services need. Nothing is started.
set -eu
python=$1 wheels=$(dirname "$0")
hook='' power=''
[ -d /etc/slurm ] && hook='--hook /etc/slurm' power='--power /etc/slurm/power'
"$python" -m venv --clear /opt/helios
/opt/helios/bin/pip install --quiet --no-index --no-cache-dir --disable-pip-version-check \
  --find-links "$wheels" 'helios-slurm[postgres,web]'
# shellcheck disable=SC2086
/opt/helios/bin/helios setup $hook $power >/dev/null
if getent passwd helios >/dev/null; then
  install -d -m 0750 -o helios -g helios /var/cache/helios /var/lib/helios
  echo 'Compiling what Helios would else compile at its first use (a minute or two) ...'
  /usr/local/sbin/helios compile >/dev/null || echo 'It could not compile; what is missing is compiled when it is used.' >&2
fi
echo 'Helios is installed and not started. Next: /usr/share/doc/helios-slurm/install.md, then  helios doctor'
