#!/bin/sh
# Print the path of a CPython that works, or say on stderr what was looked for and why nothing fitted (exit 1).
#   find_python.sh VERSION...     in order of preference; 3.13t means the free-threaded build
#   PYTHON=/path find_python.sh … only that one is looked at
# Every candidate is run before it is believed: a pyenv shim of the right name may stand for nothing.
set -u

[ $# -gt 0 ] || { echo "usage: $0 VERSION..." >&2; exit 2; }
tried=""

limited() { if command -v timeout >/dev/null 2>&1; then timeout 20 "$@"; else "$@"; fi; }

# Prints "3.13", "3.13t" …; fails with a reason when the interpreter is not one to build on.
describe() {
    limited "$1" -I -c '
import sys
if sys.implementation.name != "cpython":
    sys.exit("it is " + sys.implementation.name + ", not CPython")
try:
    import ctypes, ssl, sqlite3, zlib
except ImportError as error:
    sys.exit("it was built incomplete: " + str(error))
import sysconfig
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%d.%d%s" % (sys.version_info[0], sys.version_info[1], free))
' 2>&1
}

# One path per line, best places first; $1 is a version such as 3.13 or 3.13t.
candidates() {
    plain=${1%t}
    free=${1#"$plain"}
    pyenv=${PYENV_ROOT:-${HOME:-/root}/.pyenv}
    managed=${XDG_DATA_HOME:-${HOME:-/root}/.local/share}/uv/python
    for folder in "$pyenv/versions/$plain$free" "$pyenv/versions/$plain".*; do
        echo "$folder/bin/python$1"
    done
    for name in "python$1" "python$plain" python3 python; do
        echo "$PATH" | tr ':' '\n' | while IFS= read -r folder; do
            [ -z "$folder" ] || echo "$folder/$name"
        done
        for folder in /usr/local/bin /usr/bin "${HOME:-/root}/.local/bin" /opt/python*/bin; do
            echo "$folder/$name"
        done
    done
    # what build_free_threaded.sh built
    echo "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sglang_subgw/python-$1/bin/python$1"
    for store in "${UV_PYTHON_INSTALL_DIR:-$managed}" "$managed" "$(dirname "$0")/../.cache/python"; do
        for folder in "$store"/cpython-"$plain"*; do
            echo "$folder/bin/python$1"
        done
    done
}

if [ -n "${PYTHON:-}" ]; then
    path=$(command -v "$PYTHON") || path=$PYTHON
    found=$(describe "$path") || { echo "PYTHON=$PYTHON can't be used: $(echo "$found" | tail -n 1)" >&2; exit 1; }
    for want in "$@"; do
        [ "$found" != "$want" ] || { echo "$path"; exit 0; }
    done
    echo "PYTHON=$PYTHON is $found; needed: $*" >&2
    exit 1
fi

old_ifs=$IFS
for want in "$@"; do
    IFS='
'
    for path in $(candidates "$want"); do
        IFS=$old_ifs
        [ -f "$path" ] && [ -x "$path" ] || continue
        case "$tried" in *"|$path|"*) continue ;; esac
        if found=$(describe "$path"); then
            [ "$found" != "$want" ] || { echo "$path"; exit 0; }
            reason="it is $found"
        else
            reason=$(echo "$found" | grep -v '^[[:space:]]*$' | head -n 1)
            reason="it does not run: ${reason:-no answer within 20 s}"
            tried="$tried|$path|"
        fi
        case "${seen:-}" in *"  $path: "*) ;; *) seen="${seen:-}  $path: $reason
" ;; esac
    done
    IFS=$old_ifs
done

{
    echo "No Python $(echo "$*" | sed 's/ / or /g') was found."
    echo "Looked in PATH, pyenv (${PYENV_ROOT:-${HOME:-/root}/.pyenv}/versions), /usr/local/bin, /usr/bin, /opt/python*, ~/.local/bin, uv's own Pythons:"
    printf '%s' "${seen:-  nothing named python was there
}"
} >&2
exit 1
