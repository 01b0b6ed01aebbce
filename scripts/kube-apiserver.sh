#!/usr/bin/env bash
# A real kube-apiserver on 127.0.0.1, built from the Go module proxy, with etcd of Debian's etcd-server behind it.
# Usage: kube-apiserver.sh build DIR    builds DIR/kube-apiserver: about 5 minutes on two idle cores, 1.8 GB of memory
#        kube-apiserver.sh start DIR    starts both, waits until they are ready, prints the path of a kubeconfig
#        kube-apiserver.sh stop DIR     ends both
# DIR/pki has the identities admin (of system:masters) and node (system:node:n1 of system:nodes, the kubeconfig's user).
# Needs go to build; etcd, openssl and curl to start. KUBE_VERSION (1.34.4), KUBE_PORT (16443) and ETCD_PORT (12379)
# can be set; the tests of `bun run test:kube` expect that port.
set -euo pipefail
version=${KUBE_VERSION:-1.34.4} port=${KUBE_PORT:-16443} etcd_port=${ETCD_PORT:-12379}
[ $# -eq 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64; }
command=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || { echo "Cannot find \"$program\" in PATH" >&2; exit 69; }
  done
}

build() {
  [ ! -x "$dir/kube-apiserver" ] || return 0
  need go
  export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
  go mod download "k8s.io/kubernetes@v$version"
  rm -rf "$dir/src"
  cp -r "$(go env GOMODCACHE)/k8s.io/kubernetes@v$version" "$dir/src"
  chmod -R u+w "$dir/src"
  # go.mod points to staging folders that the proxy's archive leaves out: they are modules of their own there.
  (
    cd "$dir/src"
    rm -rf vendor go.work go.work.sum
    sed -i -E "s#^(\s+)(k8s.io/[a-z0-9-]+) => ./staging/src/.*#\1\2 => \2 v0.${version#1.}#" go.mod
    go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" \
      -o ../kube-apiserver ./cmd/kube-apiserver
  )
  rm -rf "$dir/src"
}

# issue NAME SUBJECT USAGE [SUBJECT-ALTERNATIVE-NAME]
issue() {
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
  printf 'extendedKeyUsage=%s\nkeyUsage=digitalSignature\n%s\n' "$3" "${4:-}" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.pem" 2>/dev/null
}

pki() {
  mkdir -p "$dir/pki"
  cd "$dir/pki"
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ca.key 2>/dev/null
  openssl req -x509 -new -key ca.key -subj /CN=test-ca -days 30 -out ca.pem
  issue server /CN=kube-apiserver serverAuth subjectAltName=IP:127.0.0.1,DNS:localhost
  issue admin /O=system:masters/CN=admin clientAuth
  issue node /O=system:nodes/CN=system:node:n1 clientAuth
  openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out sa.key 2>/dev/null
  openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
}

start() {
  need etcd openssl curl
  stop
  (pki)
  rm -rf "$dir/etcd"
  local url="http://127.0.0.1:$etcd_port" peer="http://127.0.0.1:$((etcd_port + 1))"
  etcd --data-dir "$dir/etcd" --listen-client-urls "$url" --advertise-client-urls "$url" --listen-peer-urls "$peer" \
    --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$dir/etcd.log" 2>&1 &
  echo $! >"$dir/etcd.pid"
  "$dir/kube-apiserver" --etcd-servers="$url" --bind-address=127.0.0.1 --secure-port="$port" --advertise-address=127.0.0.1 \
    --tls-cert-file="$dir/pki/server.pem" --tls-private-key-file="$dir/pki/server.key" --client-ca-file="$dir/pki/ca.pem" \
    --service-account-key-file="$dir/pki/sa.pub" --service-account-signing-key-file="$dir/pki/sa.key" \
    --service-account-issuer=https://localhost --service-cluster-ip-range=10.96.0.0/24 \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction >"$dir/apiserver.log" 2>&1 &
  echo $! >"$dir/apiserver.pid"
  cat >"$dir/kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: node
contexts: [{name: node, context: {cluster: test, user: node}}, {name: admin, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$port", certificate-authority: $dir/pki/ca.pem}}]
users:
  - {name: node, user: {client-certificate: $dir/pki/node.pem, client-key: $dir/pki/node.key}}
  - {name: admin, user: {client-certificate: $dir/pki/admin.pem, client-key: $dir/pki/admin.key}}
CONFIG
  local as_admin=(--cacert "$dir/pki/ca.pem" --cert "$dir/pki/admin.pem" --key "$dir/pki/admin.key")
  for _ in $(seq 300); do
    if curl -sf "${as_admin[@]}" "https://127.0.0.1:$port/readyz" >/dev/null; then
      echo "$dir/kubeconfig"
      return
    fi
    sleep 0.2
  done
  echo "Cannot start kube-apiserver: not ready after 60 s; its last words:" >&2
  tail -5 "$dir/apiserver.log" >&2
  stop
  return 1
}

stop() {
  local name pid
  for name in apiserver etcd; do
    [ -e "$dir/$name.pid" ] || continue
    pid=$(cat "$dir/$name.pid")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$dir/$name.pid"
  done
  rm -rf "$dir/etcd"
}

case $command in
  build | start | stop) "$command" ;;
  *) exit 64 ;;
esac
