#!/bin/sh
# Run before a package is upgraded or removed: stops the services, which revert what they have set. Given remove, it also
# removes the environment and what setup has laid down.
set -eu
if [ -d /run/systemd/system ]; then
  systemctl stop helios.service helios-power.service helios-web.service helios-nightly.timer helios-nightly.service 2>/dev/null || true
fi
[ "${1:-}" = remove ] || exit 0
if [ -d /run/systemd/system ]; then
  systemctl disable helios.service helios-power.service helios-web.service helios-nightly.timer 2>/dev/null || true
fi
[ ! -x /opt/helios/bin/helios ] || /opt/helios/bin/helios setup --remove >/dev/null || true
rm -rf /opt/helios
