#!/bin/sh
# Print the path of a free-threaded CPython 3.13, built from Debian's source package if the machine has none (about 5 minutes, once).
#   build_free_threaded.sh      the result stays in $XDG_CACHE_HOME/sglang_subgw (~/.cache), where find_python.sh finds it again
# The system's apt configuration is left as it is; packages to build with are installed only by root, and only those that are missing.
# When it can't be had, the last line on stderr says why (exit 1).
set -u
cd "$(dirname "$0")/.." || exit 1

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sglang_subgw
prefix=$cache/python-3.13t
headers="gcc make pkg-config xz-utils libc6-dev libssl-dev libffi-dev zlib1g-dev libsqlite3-dev libbz2-dev liblzma-dev"

say() { echo "[python 3.13t] $*" >&2; }
fail() { say "$*"; exit 1; }

! tools/find_python.sh 3.13t 2>/dev/null || exit 0
command -v apt-get >/dev/null || fail "no free-threaded 3.13 here, and no apt-get to get its source with"

mkdir -p "$cache" || fail "$cache can't be made"
if command -v flock >/dev/null && [ "${1:-}" != locked ]; then
    # Two builds at once would only be slower than one after the other.
    exec flock "$cache/.python-3.13t.lock" "tools/$(basename "$0")" locked
fi
work=$(mktemp -d "$cache/build.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

missing=$(for package in $headers; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
done | tr '\n' ' ')
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || fail "packages to build it with are missing (as root: apt-get install $missing)"
    say "installing what it is built with: $missing"
    if ! { apt-get -q=2 update && DEBIAN_FRONTEND=noninteractive apt-get -q=2 install --no-install-recommends -y $missing; } >"$work/log" 2>&1; then
        tail -n 5 "$work/log" >&2
        fail "apt-get could not install $missing"
    fi
fi

# The mirror that this system's own release comes from.
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Component: main' | awk -v release="$release" '$1 == release { print $2; exit }')
[ -n "$mirror" ] || fail "the system's apt sources name no mirror of ${release:-its release}"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -e "$keyring" ] || signed="[signed-by=$keyring] "
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/source"
set -- -q=2 -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists" \
    -o "Dir::Cache=$work/archives" -o APT::Sandbox::User= -o Debug::NoLocking=1
tarball=""
for suite in trixie forky; do
    echo "deb-src ${signed:-}$mirror $suite main" >"$work/sources.list"
    say "fetching the source of python3.13 of Debian's $suite"
    if (cd "$work/source" && apt-get "$@" update && apt-get "$@" --download-only source python3.13) >"$work/log" 2>&1; then
        tarball=$(echo "$work"/source/python3.13_*.orig.tar.*z)
        [ ! -f "$tarball" ] || break
    fi
    tarball=""
done
[ -n "$tarball" ] || { tail -n 5 "$work/log" >&2; fail "the mirror in the system's apt sources has no source package python3.13"; }

say "building $(basename "$tarball" | sed 's/^python3.13_//; s/\.orig.*//') with --disable-gil: about 5 minutes"
begin=$(date +%s)
(
    set -e
    mkdir "$work/build"
    tar -xf "$tarball" -C "$work/build" --strip-components 1
    cd "$work/build"
    # `python -m venv` works all the same: ensurepip itself is part of the standard library.
    ./configure --prefix="$prefix" --disable-gil --without-ensurepip --without-static-libpython --disable-test-modules
    nice make -j"$(nproc)"
    make install DESTDIR="$work/root"
) >"$work/log" 2>&1 || { tail -n 15 "$work/log" >&2; fail "its build failed"; }
rm -rf "$prefix"
mv "$work/root$prefix" "$prefix" || fail "it could not be moved to $prefix"
say "it is in $prefix ($(($(date +%s) - begin)) s)"
tools/find_python.sh 3.13t || fail "what was built can't be used"
