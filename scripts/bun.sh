#!/bin/sh
# Runs the Bun that package-lock.json names, wherever npm was told to leave install scripts out: npm's
# package `bun` puts its program in place by such a script.
# Usage: sh scripts/bun.sh ARGUMENT...
set -e
cd "$(dirname "$0")/.."
if ! node_modules/.bin/bun --version >/dev/null 2>&1; then
  [ -d node_modules/bun ] || { echo "Cannot find Bun: run \"npm ci\" first" >&2; exit 69; }
  (cd node_modules/bun && node install.js)
fi
exec node_modules/.bin/bun "$@"
