#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CHANGELOG.md (Keep a Changelog) as a Debian changelog: debian-changelog.sh VERSION MAINTAINER. The first section is VERSION's.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 maintainer=$2
now=$(LC_ALL=C date -u -R -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}")
awk -v version="$version" -v maintainer="$maintainer" -v now="$now" '
# A bullet in lines of at most 78 characters.
function bullet(   n, words, i, line) {
    if (text == "") return
    n = split(text, words, " ")
    line = "  *"
    for (i = 1; i <= n; i++) {
        if (length(line) + 1 + length(words[i]) > 78) {
            print line
            line = "   "
        }
        line = line " " words[i]
    }
    print line
    text = ""
}
function finish() {
    bullet()
    if (open) printf "\n -- %s  %s\n\n", maintainer, date
    open = 0
}
/^## \[/ {
    finish()
    name = $2
    gsub(/[][]/, "", name)
    day = $4
    if (name == "Unreleased") day = ""
    next_version = first ? name "-1" : version
    group = ""
    next
}
/^### / { bullet(); group = $2; next }
/^- / {
    bullet()
    if (!open) {
        printf "tunny (%s) unstable; urgency=medium\n\n", next_version
        open = 1
        first = 1
        date = now
        if (day != "") {
            command = "LC_ALL=C date -u -R -d " day
            command | getline date
            close(command)
        }
    }
    sub(/^- /, "")
    text = group ": " $0
    next
}
/^  [^ ]/ { text = text " " $0; next }
END { finish() }
' CHANGELOG.md
