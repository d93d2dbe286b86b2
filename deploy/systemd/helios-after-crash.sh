#!/bin/sh
# ExecStopPost of the units, given --jobs-only or --nodes-only: when the daemon did not end cleanly (killed, out of
# memory, watchdog, or it could not take everything back), takes back what Helios set, without Python. After a clean stop
# there is nothing to do: the daemon has taken everything back and verified it, or daemon.release_on_stop is false, or it
# was a standby.
#
# Unlike an admin who runs helios-release.sh, a crash does not pause Helios: systemd starts it again, and it goes on.
set -u
[ "${SERVICE_RESULT:-unknown}" = success ] && exit 0
# Another daemon has the state folder: this one has set nothing, and what stands is the other's.
[ "${EXIT_STATUS:-}" = 75 ] && exit 0

state=${HELIOS_CONTROL_STATE_FOLDER:-/var/lib/helios}
echo "helios ended with ${SERVICE_RESULT:-unknown} (${EXIT_CODE:-?} ${EXIT_STATUS:-?}): taking back what it set"
[ -e "$state/PAUSED" ] && was_paused=yes || was_paused=
# Nodes that fall asleep are not waited for beyond TimeoutStopSec: this would be killed with PAUSED still there. The
# daemon that is started again knows them.
"$(dirname "$0")/helios-release.sh" --wait 60 "$@"
released=$?
[ -n "$was_paused" ] || rm -f "$state/PAUSED"
# 3: only values are left that a user or an admin wrote. No failure of the unit.
[ $released = 3 ] && exit 0
exit $released
