#!/bin/sh
# Create an environment of this project:  install.sh serve | tools
#   serve  .venv        this project (editable), with SGLang: what `make serve` runs
#   tools  .venv-tools  tox: what `make test` runs
# Progress is in plain lines on stderr; a run that was interrupted is repaired by the next one.
set -eu
cd "$(dirname "$0")/.."

say() { echo "[setup] $*" >&2; }
since() { echo "$(($(date +%s) - $1)) s"; }

# A company's certificates are in the system's store, not in uv's own.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
export UV_CONSTRAINT="${UV_CONSTRAINT:-tools/constraints.txt}"
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
export UV_NO_PROGRESS="${UV_NO_PROGRESS:-$([ -t 2 ] || echo 1)}"
[ -n "$UV_NO_PROGRESS" ] || unset UV_NO_PROGRESS

case "${1:-}" in
    serve) venv=.venv versions="3.13" ;;
    tools) venv=.venv-tools versions="3.13 3.14" ;;
    *) echo "usage: $0 serve|tools" >&2; exit 2 ;;
esac

begin=$(date +%s)
if ! python=$(tools/find_python.sh $versions 2>.setup-error); then
    cat .setup-error >&2
    rm -f .setup-error
    [ -z "${PYTHON:-}" ] || exit 1
    say "asking uv for a Python 3.13 of its own (into .cache/python) ..."
    if ! { uv=$(tools/get_uv.sh "$(command -v python3 || true)") \
        && UV_PYTHON_INSTALL_DIR=$PWD/.cache/python "$uv" python install --no-bin 3.13 >&2 \
        && python=$(tools/find_python.sh 3.13); }; then
        cat >&2 <<'END'

This project needs CPython 3.13 with its GIL (SGLang 0.5.23 has no wheels for 3.14, nor for a free-threaded build).
Do one of these, then run the same command again:
  apt-get install python3.13         (Debian 13, Ubuntu 25.04 and later; as root)
  pyenv install 3.13
  uv python install 3.13
  make serve PYTHON=/path/to/python3.13
END
        exit 1
    fi
fi
rm -f .setup-error
say "Python: $python ($("$python" -c 'import platform; print(platform.python_version())'))"

uv=$(tools/get_uv.sh "$python")
say "uv: $uv ($("$uv" --version | cut -d' ' -f2))"

# Scripts of a moved or copied environment still name their old place.
[ ! -e "$venv/.installed" ] || [ "$(cat "$venv/.installed")" = "$PWD" ] || rm -rf "$venv" .tox
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 13))' 2>/dev/null; then
    say "creating $venv"
    [ -d "$venv" ] || rm -f "$venv"
    "$uv" venv -q --clear --python "$python" "$venv"
fi

if [ "$venv" = .venv ]; then
    free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free" -ge 14 ] || say "warning: $free GB free here; SGLang and the download cache take about 11 GB (20 GB when the cache is on another disk)"
    say "installing SGLang and this project: about 200 packages, 4 GB to download the first time (3 to 5 minutes), under a minute later"
    "$uv" pip install --python "$venv" --group engine --editable '.[fast]' >&2
    say "importing SGLang once, so that later starts find its bytecode: about a minute in a new environment"
    "$venv/bin/python" tools/warm_up.py >&2
else
    say "installing tox"
    "$uv" pip install -q --python "$venv" --group tools >&2
fi

pwd >"$venv/.installed"
say "$venv is ready ($(since "$begin") in all)"
