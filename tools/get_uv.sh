#!/bin/sh
# Print the path of a working uv, fetching one into .cache/uv-bin if the machine has none. Changes nothing outside the project folder.
#   get_uv.sh [PYTHON]     PYTHON: an interpreter to install it with (others on the machine are tried as well)
# uv is a program of its own: it doesn't matter which Python installs it.
set -u
cd "$(dirname "$0")/.." || exit 1
home=$PWD/.cache/uv-bin
wanted='uv>=0.8'
export PIP_ROOT_USER_ACTION=ignore

say() { echo "[setup] $*" >&2; }

usable() { # dependency groups and override-dependencies need uv 0.8
    version=$("$1" --version 2>/dev/null) || return 1
    echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 0 || v[2] >= 8) }'
}

for uv in "$home/bin/uv" "$(command -v uv)" "${HOME:-/root}/.local/bin/uv"; do
    if [ -n "$uv" ] && usable "$uv"; then echo "$uv"; exit 0; fi
done

# pip of whichever Python has one (--target needs no venv, and no ensurepip)
for python in "${1:-}" python3 python "${PYENV_ROOT:-${HOME:-/root}/.pyenv}"/versions/3.*/bin/python3 /usr/bin/python3; do
    [ -n "$python" ] || continue
    "$python" -m pip --version >/dev/null 2>&1 || continue
    say "no working uv here; installing one into .cache with $python -m pip"
    "$python" -m pip install -q --disable-pip-version-check --no-warn-script-location --target "$home" --upgrade "$wanted" >&2 \
        && usable "$home/bin/uv" && { echo "$home/bin/uv"; exit 0; }
done

# a Debian without pip: its own wheel of pip, unpacked beside us (no root, nothing installed on the system)
if [ -n "${1:-}" ] && command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    say "no pip on this machine; unpacking Debian's python3-pip-whl into .cache (the system stays as it is)"
    apt=$PWD/.cache/apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/root"
    set -- "$1" -q=2 -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/archives" -o APT::Sandbox::User=root
    python=$1
    shift
    if (apt-get "$@" update && cd "$apt" && apt-get "$@" download python3-pip-whl && dpkg-deb -x python3-pip-whl_*.deb root) >&2; then
        for wheel in "$apt"/root/usr/share/python-wheels/pip-*.whl; do
            "$python" "$wheel/pip" install -q --disable-pip-version-check --no-warn-script-location --target "$home" "$wanted" >&2
        done
        rm -rf "$apt"
        usable "$home/bin/uv" && { echo "$home/bin/uv"; exit 0; }
    fi
fi

cat >&2 <<'END'
No uv, and no way to install one: no Python on this machine has pip.
Do one of these, then run the same command again:
  apt-get install python3-pip        (Debian, Ubuntu; as root)
  install uv by its own instructions and have it on PATH
END
exit 1
