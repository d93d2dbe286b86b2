#!/bin/sh
# Builds a Debian package and an rpm from a wheel, each where its tool is at hand: an environment of Python in
# /usr/lib/helios with all that it needs and everything compiled, and the files that helios setup would lay down. So
# nothing is made, fetched or compiled where it is installed. Both are for the Python and the architecture that they are
# built with.
set -eu
usage='usage: build.sh WHEEL FOLDER     writes FOLDER/helios-slurm_VERSION_ARCHITECTURE.deb and .rpm'
if [ $# != 2 ] || [ ! -f "$1" ]; then echo "$usage" >&2; exit 2; fi
wheel=$1 folder=$2 python=${PYTHON:-python3} here=$(cd "$(dirname "$0")" && pwd)

version=$(basename "$wheel" | cut -d- -f2)
release=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root prefix=/usr/lib/helios home=$work/root/usr/lib/helios docs=$work/root/usr/share/doc/helios-slurm
packages=$home/lib/python$release/site-packages
install -d "$folder" "$packages" "$home/bin" "$docs"
folder=$(cd "$folder" && pwd)

"$python" -m pip install --quiet --only-binary :all: --no-compile --disable-pip-version-check --target "$packages" \
  "${wheel}[postgres,web]"
# What nothing here imports: tests, headers, Arrow's networks, second copies of its libraries, and a format of pictures.
rm -rf "$packages"/bin "$packages"/pyarrow/include "$packages"/pyarrow/src "$packages"/pyarrow/libarrow_s3* \
  "$packages"/pyarrow/_s3fs* "$packages"/pyarrow/libarrow_python*.so "$packages"/pyarrow/libarrow_python*.so.*.*.* \
  "$packages"/pillow.libs/libavif* "$packages"/PIL/_avif* "$packages"/scipy/io "$packages"/matplotlib/mpl-data/sample_data
find "$packages" -type d \( -name tests -o -name test \) ! -path "$packages/helios/*" -prune -exec rm -rf {} +
find "$packages" \( -name '*.pyi' -o -name '*.h' -o -name '*.hpp' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.a' \
  -o -path '*/fontTools/*.c' -o -path '*/pyarrow/*flight*' \) -type f -delete
# Those that their makers have left with symbols.
for library in llvmlite fontTools kiwisolver matplotlib contourpy; do
  find "$packages/$library" -name '*.so' -exec strip --strip-unneeded {} +
done
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$release" >"$home/pyvenv.cfg"
ln -s "/usr/bin/python$release" "$home/bin/python3"
printf '#!%s/bin/python3\nimport sys\n\nfrom helios.__main__ import main\n\nsys.exit(main())\n' "$prefix" >"$home/bin/helios"
chmod 0755 "$home/bin/helios"

helios() {
  PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1 "$python" -P -c 'from helios.cli.main import main; main()' "$@"
}
helios setup --root "$root" --prefix "$prefix" >/dev/null
rm -r "$root/var"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
install -d "$root/usr/share/helios"
install -m 0644 "$here/../slurm/job_submit.lua" "$root/usr/share/helios/helios_hook.lua"
cp -r "$here/../slurm/power" "$root/usr/share/helios/power"
install -m 0644 "$here/../../LICENSE" "$docs/copyright"
install -m 0644 "$here/../../docs/install.md" "$here/../../docs/operate.md" "$docs"

# Numba takes its code as long as the sources are of the same second and in the same folder, whose digest names its own.
find "$root" -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH:-$(date +%s)}" {} +
echo 'Compiling for every processor of this architecture (some minutes) ...' >&2
NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES='' NUMBA_CACHE_DIR=$home/compiled MPLCONFIGDIR=$work helios compile >&2
"$python" - "$packages" "$prefix/lib/python$release/site-packages" "$home/compiled" <<'END'
import sys
from hashlib import sha1
from pathlib import Path

built, installed, compiled = map(Path, sys.argv[1:])
names = {}
for folder in (path for path in (built / "helios").rglob("*") if path.is_dir()):
    one, other = (sha1(str(place).encode()).hexdigest() for place in (folder, installed / folder.relative_to(built)))
    names[f"{folder.name}_{one}"] = f"{folder.name}_{other}"
found = [path for path in compiled.glob("*/*") if path.is_dir()]
for path in found:
    path.rename(path.with_name(names[path.name]))
END
find "$home/compiled" -exec touch --reference "$home/pyvenv.cfg" {} +
"$python" "$here/bytecode.py" "$packages"

if command -v rpmbuild >/dev/null; then
  rpmbuild --quiet -bb --define "_topdir $work/rpm" --define "_rpmdir $folder" \
    --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --define "helios_version $version" \
    --define "helios_python $release" --define "helios_root $root" "$here/../rpm/helios.spec"
else
  echo "rpmbuild is not here: no rpm" >&2
fi
command -v dpkg-deb >/dev/null || { echo "dpkg-deb is not here: no Debian package" >&2; exit 0; }
architecture=$(dpkg --print-architecture)
install -d "$root/DEBIAN"
for step in postinst prerm postrm; do install -m 0755 "$here/../debian/$step" "$root/DEBIAN"; done
echo /etc/helios/helios.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<TEXT
Package: helios-slurm
Version: $version
Architecture: $architecture
Maintainer: The Helios developers <helios@localhost>
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: python3 (>= $release), python3 (<< $next), libgomp1
Section: admin
Priority: optional
Description: learns from a Slurm GPU cluster's history and acts on it
 Orders the queue, puts idle nodes to sleep, and says what a history shows.
 Everything is compiled, and no network is needed. Nothing is started: see
 /usr/share/doc/helios-slurm/install.md.
TEXT
dpkg-deb --root-owner-group -Zgzip -z6 --build "$root" "$folder/helios-slurm_${version}_$architecture.deb"
