#!/bin/bash
# The one test command: formats, lints, documents, builds and tests all of xtfs.
#
#     bash tests/all.sh
#
# Needs root (it mounts), Rust, a C compiler, and Debian or Ubuntu to install the rest by itself.
# Prints a line per step and the whole output of steps that fail, closes with "N passed, N failed"
# and exits with 0 exactly when nothing failed. Logs stay in target/test-logs.
set -uo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 CARGO_TERM_COLOR=never RUST_BACKTRACE=1 RUSTDOCFLAGS=-Dwarnings
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/sbin:/sbin"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
logs=$target/test-logs
rm -rf "$logs" && mkdir -p "$logs"
export XTFS_TEST_TOOLS=$target/tools/bin
passed=0 failed=0 began=$SECONDS
base=${TMPDIR:-/tmp}

# Everything that tests make lies below this folder, so that what they leave behind can be found.
# Its path is short, because paths of sockets have to be.
TMPDIR=$(mktemp -d "$base/xt.XXXXXX") && export TMPDIR && chmod 755 "$TMPDIR"
finish() {
    "$target/debug/xtfs-test-warden" "$TMPDIR" </dev/null 2>/dev/null || rm -rf --one-file-system "$TMPDIR"
}
trap finish EXIT
running=
trap '[ -z "$running" ] || kill -TERM "$running" 2>/dev/null; wait; exit 130' INT TERM

say() { printf '%-34s %-8s %4d s  %s\n' "$1" "$2" "$3" "${4:-}"; }

# step NAME SECONDS_MAX COMMAND...: one check; its output goes to a log and is shown if it fails.
step() {
    local name=$1 limit=$2 start=$SECONDS log counts good bad
    shift 2
    log=$logs/$name.log
    # In the background, so that a signal is heard while it runs.
    timeout -k 20 "$limit" "$@" >"$log" 2>&1 </dev/null &
    running=$!
    if wait "$running"; then ok=1; else ok=0; fi
    running=
    # Programs with tests say how many they ran; other steps count as one.
    counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$log")
    good=$(awk '{n += $1} END {print n + 0}' <<<"$counts")
    bad=$(awk '{n += $2} END {print n + 0}' <<<"$counts")
    [ -n "$counts" ] || good=$ok
    [ "$ok" = 1 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$ok" = 1 ]; then say "$name" ok $((SECONDS - start)) "$good passed"
    else
        say "$name" FAILED $((SECONDS - start)) "$good passed, $bad failed"
        sed 's/^/    | /' "$log"
    fi
    leaks "$name"
    [ "$ok" = 1 ]
}

# Whatever a step left behind is a failure of its own.
leaks() {
    local left
    left=$(
        grep -F " $TMPDIR" /proc/self/mountinfo | sed 's/^/mount: /'
        for process in /proc/[0-9]*; do
            [ "$process" != "/proc/$$" ] && [ "$process" != "/proc/$BASHPID" ] || continue
            [ "$(sed -n 's/^PPid:\t//p' "$process/status" 2>/dev/null)" != $$ ] || continue
            tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qxF "TMPDIR=$TMPDIR" &&
                [ "$(sed -n 's/^PPid:\t//p' "$process/status" 2>/dev/null)" != "$BASHPID" ] &&
                echo "process: ${process#/proc/} $(tr '\0' ' ' <"$process/cmdline")"
        done 2>/dev/null
        find "$TMPDIR" -xdev -mindepth 1 -maxdepth 1 | sed 's/^/file: /'
    )
    [ -n "$left" ] || return 0
    failed=$((failed + 1))
    say "$1" "LEFT" 0 "something behind:"
    sed 's/^/    | /' <<<"$left"
    "$target/debug/xtfs-test-warden" "$TMPDIR" </dev/null
    mkdir -p -m 755 "$TMPDIR"
}

close() {
    echo "took $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

# --- what the tests need

install_tools() {
    if [ "$(id -u)" != 0 ]; then echo "run the tests as root: they mount file systems"; return 1; fi
    local missing=() pair
    for pair in cc:gcc fusermount3:fuse3 setfattr:attr setfacl:acl sqlite3:sqlite3 rsync:rsync git:git \
        mkfs.ext4:e2fsprogs mount:mount unshare:util-linux systemd-analyze:systemd fallocate:util-linux diff:diffutils find:findutils strace:strace valgrind:valgrind; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ -e /usr/include/sys/acl.h ] || missing+=(libacl1-dev)
    if [ ${#missing[@]} -gt 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" || return 1
    fi
    [ -e /dev/fuse ] || modprobe fuse || { echo "no /dev/fuse"; return 1; }
    # pjdfstest acts as two users without rights.
    id tests >/dev/null 2>&1 || useradd -r -M -d / -s /usr/sbin/nologin -U tests || return 1
    local crate
    for crate in pjdfstest@0.2.2 fsx@0.3.2; do
        [ "$("$XTFS_TEST_TOOLS/${crate%@*}" --version 2>/dev/null)" = "${crate%@*} ${crate#*@}" ] ||
            cargo install -q --locked --root "$target/tools" --target-dir "$target/tools/build" "$crate" || return 1
    done
    rm -rf "$target/tools/build"
}
export -f install_tools
export target

step install 900 bash -c install_tools || close

# --- the sources

step format 60 cargo fmt --all --check
step build 1800 cargo build --workspace --all-targets --locked || close
step lint 1200 cargo clippy --workspace --all-targets --locked -- -D warnings
step docs 900 cargo doc --workspace --no-deps --locked

# --- the tests: each program on its own, units and properties first, whole cells last

programs() {
    cargo test --workspace --no-run --locked --message-format=json 2>/dev/null |
        sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1 \2/p'
}
programs >"$logs/programs"
[ -s "$logs/programs" ] || { echo "no test programs were built"; failed=$((failed + 1)); close; }

while read -r folder program; do
    crate=${folder#"$PWD"} && crate=${crate#/} && crate=${crate//\//-}
    name=$(basename "${program%-*}")
    case $crate/$name in tests/xtfs_test*) ;; tests/*) continue ;; esac
    step "${crate:-xtfs}-$name" 900 env -C "$folder" "$program"
done <"$logs/programs"
step doctests 600 cargo test --workspace --doc --locked
step babu-kv-schedules 600 cargo test -p babu-kv --features shuttle --test schedules --locked
# Where there is unsafe code: the unit tests of those modules, and a little of all the rest.
memcheck() {
    local program=$(sed -n "s|^$PWD/babu-kv \(.*/$1-[0-9a-f]*\)$|\1|p" "$logs/programs")
    shift
    PROPTEST_CASES=8 valgrind -q --error-exitcode=1 --fair-sched=yes "${program:-false}" "$@"
}
export -f memcheck
export logs
step babu-kv-memcheck 300 bash -c 'memcheck babu_kv memtable && memcheck model'

for name in layering simulation locks cleanliness command mount coherence acl quota desktop corruption full_disk kill pjdfstest fsx lossy; do
    program=$(sed -n "s|^$PWD/tests \(.*/$name-[0-9a-f]*\)$|\1|p" "$logs/programs")
    step "$name" 1200 env -C tests "${program:-false}" --test-threads=1 --nocapture
done
close
