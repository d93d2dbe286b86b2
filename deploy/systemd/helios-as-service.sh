#!/bin/sh
# Installed as /usr/local/sbin/helios: what root types is done as the service does it, same user, same settings.
set -eu
export HELIOS_CONFIG=/etc/helios/helios.toml HELIOS_CONTROL_STATE_FOLDER=/var/lib/helios
export NUMBA_CACHE_DIR=/var/cache/helios MPLCONFIGDIR=/var/cache/helios
if [ -r /etc/helios/environment ]; then set -a; . /etc/helios/environment; set +a; fi
[ "$(id -un)" = helios ] && exec /opt/helios/bin/helios "$@"
exec runuser -u helios -- /opt/helios/bin/helios "$@"
