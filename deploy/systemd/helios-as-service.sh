#!/bin/sh
# Installed as /usr/sbin/helios by a package, else as /usr/local/sbin/helios: what root types is done as the service does it, same user, same settings.
set -eu
export HELIOS_CONTROL_STATE_FOLDER=/var/lib/helios
export NUMBA_CACHE_DIR=/var/cache/helios MPLCONFIGDIR=/var/cache/helios
if [ "$(id -u)" != 0 ]; then
  echo "error: this asks the service's database, which only the service may read. Type: sudo helios $*" >&2
  exit 2
fi
if [ -r /etc/helios/environment ]; then set -a; . /etc/helios/environment; set +a; fi
exec runuser -u helios -- /opt/helios/bin/helios "$@"
